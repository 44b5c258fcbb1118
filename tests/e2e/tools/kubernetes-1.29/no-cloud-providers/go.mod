// Stands for k8s.io/legacy-cloud-providers, which is not compiled.
module k8s.io/legacy-cloud-providers

go 1.21
