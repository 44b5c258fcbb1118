// KServe's controller of InferenceServices and its webhooks for them and their pods, without what its own main adds:
// the other kinds, and webhooks and metrics on every address.
package main

import (
	"context"
	"flag"
	"os"

	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/kserve/kserve/pkg/apis/serving/v1alpha1"
	"github.com/kserve/kserve/pkg/apis/serving/v1beta1"
	"github.com/kserve/kserve/pkg/controller/v1beta1/inferenceservice"
	"github.com/kserve/kserve/pkg/webhook/admission/pod"
)

// The part of the tests' configuration file that is read here.
type configuration struct {
	Webhook struct {
		Host    string `json:"host"`
		Port    int    `json:"port"`
		CertDir string `json:"certDir"`
	} `json:"webhook"`
}

func main() {
	file := flag.String("config", "", "the configuration file")
	var logs zap.Options
	logs.BindFlags(flag.CommandLine)
	flag.Parse() // --kubeconfig is controller-runtime's, and $KUBECONFIG its default
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logs)))
	text, err := os.ReadFile(*file)
	utilruntime.Must(err)
	var config configuration
	utilruntime.Must(yaml.Unmarshal(text, &config))

	rest := ctrl.GetConfigOrDie()
	kube, err := kubernetes.NewForConfig(rest)
	utilruntime.Must(err)
	manager, err := ctrl.NewManager(rest, ctrl.Options{
		Metrics: server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: config.Webhook.Host, Port: config.Webhook.Port, CertDir: config.Webhook.CertDir,
		}),
	})
	utilruntime.Must(err)
	scheme := manager.GetScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(v1beta1.AddToScheme(scheme))
	utilruntime.Must(gateway.Install(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))

	settings, err := v1beta1.GetInferenceServiceConfigMap(context.Background(), kube)
	utilruntime.Must(err)
	deploy, err := v1beta1.NewDeployConfig(settings)
	utilruntime.Must(err)
	ingress, err := v1beta1.NewIngressConfig(settings)
	utilruntime.Must(err)
	_, err = v1beta1.NewMultiNodeConfig(settings)
	utilruntime.Must(err)
	utilruntime.Must((&inferenceservice.InferenceServiceReconciler{
		Client:    manager.GetClient(),
		Clientset: kube,
		Log:       ctrl.Log.WithName("InferenceService"),
		Scheme:    scheme,
		Recorder:  manager.GetEventRecorderFor("InferenceService"),
	}).SetupWithManager(manager, deploy, ingress))
	manager.GetWebhookServer().Register("/mutate-pods", &webhook.Admission{
		Handler: &pod.Mutator{Client: manager.GetClient(), Clientset: kube, Decoder: admission.NewDecoder(scheme)},
	})
	utilruntime.Must(ctrl.NewWebhookManagedBy(manager).
		For(&v1beta1.InferenceService{}).
		WithDefaulter(&v1beta1.InferenceServiceDefaulter{}).
		WithValidator(&v1beta1.InferenceServiceValidator{}).
		Complete())
	utilruntime.Must(manager.Start(ctrl.SetupSignalHandler()))
}
