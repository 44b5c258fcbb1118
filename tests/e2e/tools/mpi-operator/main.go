// MPI operator's controller, without what its own main adds: an election of a leader, and a health check on
// port 8080 of every address.
package main

import (
	"context"
	"os/signal"
	"syscall"

	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	clientset "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	kubeflowscheme "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	informers "github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
)

func must(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	rules := clientcmd.NewDefaultClientConfigLoadingRules() // $KUBECONFIG
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	must(err)
	config.QPS, config.Burst = 50, 100
	kube, err := kubernetes.NewForConfig(config)
	must(err)
	jobs, err := clientset.NewForConfig(config)
	must(err)
	must(kubeflowscheme.AddToScheme(scheme.Scheme))

	kubeFactory := kubeinformers.NewSharedInformerFactory(kube, 0)
	jobFactory := informers.NewSharedInformerFactory(jobs, 0)
	running, err := controller.NewMPIJobController(
		kube, jobs, nil, nil,
		kubeFactory.Core().V1().ConfigMaps(),
		kubeFactory.Core().V1().Secrets(),
		kubeFactory.Core().V1().Services(),
		kubeFactory.Batch().V1().Jobs(),
		kubeFactory.Core().V1().Pods(),
		kubeFactory.Scheduling().V1().PriorityClasses(),
		jobFactory.Kubeflow().V2beta1().MPIJobs(),
		"", "")
	must(err)
	kubeFactory.Start(ctx.Done())
	jobFactory.Start(ctx.Done())
	must(running.Run(2, ctx.Done()))
}
