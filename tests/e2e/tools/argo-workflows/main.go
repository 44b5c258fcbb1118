// Argo Workflows' controller, without what its own main adds: an election of a leader, cloud providers' logins, and
// metrics and profiles on two ports of every address.
package main

import (
	"context"
	"os/signal"
	"syscall"

	log "github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	clientset "github.com/argoproj/argo-workflows/v3/pkg/client/clientset/versioned"
	"github.com/argoproj/argo-workflows/v3/workflow/common"
	"github.com/argoproj/argo-workflows/v3/workflow/controller"
)

// The image of init and wait containers, as the released manifests have it for this version.
const executor = "quay.io/argoproj/argoexec:v3.7.4"

func must(err error) {
	if err != nil {
		log.Fatal(err)
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
	workflows, err := clientset.NewForConfig(config)
	must(err)
	// Its ConfigMap is read from this namespace.
	running, err := controller.NewWorkflowController(
		ctx, config, kube, workflows, "argo", "", executor, "", "text", common.ConfigMapName, false)
	must(err)
	running.Run(ctx, 4, 1, 4, 1, 1)
}
