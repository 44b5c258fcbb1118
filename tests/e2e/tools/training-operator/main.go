// Training operator's controllers, without what its own main adds: webhooks, their certificates, and metrics
// on port 8080 of every address.
package main

import (
	"os"

	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kubeflowv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	controllerv1 "github.com/kubeflow/training-operator/pkg/controller.v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
)

func main() {
	ctrl.SetLogger(zap.New(zap.Level(zapcore.InfoLevel)))
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	config.Config.MPIKubectlDeliveryImage = config.MPIKubectlDeliveryImageDefault

	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kubeflowv1.AddToScheme(scheme))
	rest := ctrl.GetConfigOrDie() // $KUBECONFIG
	rest.QPS, rest.Burst = 50, 100
	manager, err := ctrl.NewManager(rest, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	utilruntime.Must(err)
	for _, setUp := range controllerv1.SupportedSchemeReconciler {
		utilruntime.Must(setUp(manager, common.GenNonGangSchedulerSetupFunc(), 1))
	}
	if err := manager.Start(ctrl.SetupSignalHandler()); err != nil {
		os.Exit(1)
	}
}
