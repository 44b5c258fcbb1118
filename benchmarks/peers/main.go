// An admission webhook as one writes it in Go: controller-runtime's server, typed objects, a patch from the raw
// object. It does the simplest part of what ML Chassis does: it gives containers three probes and a preStop hook
// and GPU pods a toleration, and it looks through the pods of workloads for what is missing there.
//
//	peer -certs DIR [-port N]
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

type mutator struct{ decoder admission.Decoder }

func (m *mutator) Handle(_ context.Context, req admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := m.decoder.Decode(req, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	for i := range pod.Spec.Containers {
		complete(&pod.Spec.Containers[i])
	}
	if wantsGPU(&pod.Spec) && !tolerates(&pod.Spec, string(gpu)) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: string(gpu), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
		})
	}
	changed, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(req.Object.Raw, changed)
}

func complete(container *corev1.Container) {
	if len(container.Ports) == 0 {
		return
	}
	handler := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "/v2/health/live", Port: intstr.FromInt32(container.Ports[0].ContainerPort),
	}}
	if container.LivenessProbe == nil {
		container.LivenessProbe = &corev1.Probe{
			ProbeHandler: handler, PeriodSeconds: 20, TimeoutSeconds: 5, FailureThreshold: 6,
		}
	}
	if container.ReadinessProbe == nil {
		container.ReadinessProbe = &corev1.Probe{
			ProbeHandler: handler, PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 3,
		}
	}
	if container.StartupProbe == nil {
		container.StartupProbe = &corev1.Probe{
			ProbeHandler: handler, PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 180,
		}
	}
	if container.Lifecycle == nil {
		container.Lifecycle = &corev1.Lifecycle{}
	}
	if container.Lifecycle.PreStop == nil {
		container.Lifecycle.PreStop = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 10}}
	}
}

type validator struct{ decoder admission.Decoder }

func (v *validator) Handle(_ context.Context, req admission.Request) admission.Response {
	spec, err := v.podSpec(req)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	return admission.Allowed("").WithWarnings(findings(spec)...)
}

func (v *validator) podSpec(req admission.Request) (*corev1.PodSpec, error) {
	switch req.Kind.Kind {
	case "Deployment":
		deployment := &appsv1.Deployment{}
		err := v.decoder.Decode(req, deployment)
		return &deployment.Spec.Template.Spec, err
	default:
		pod := &corev1.Pod{}
		err := v.decoder.Decode(req, pod)
		return &pod.Spec, err
	}
}

func findings(spec *corev1.PodSpec) []string {
	var found []string
	for i := range spec.Containers {
		container := &spec.Containers[i]
		if container.LivenessProbe == nil {
			found = append(found, fmt.Sprintf("container %s has no livenessProbe", container.Name))
		} else if container.StartupProbe == nil {
			found = append(found, fmt.Sprintf("container %s has a livenessProbe and no startupProbe", container.Name))
		}
		if container.ReadinessProbe == nil {
			found = append(found, fmt.Sprintf("container %s has no readinessProbe", container.Name))
		}
		if probe := container.LivenessProbe; probe != nil && probe.TimeoutSeconds > probe.PeriodSeconds {
			found = append(found, fmt.Sprintf("container %s: timeoutSeconds exceeds periodSeconds", container.Name))
		}
		if container.Resources.Limits.Memory().IsZero() {
			found = append(found, fmt.Sprintf("container %s has no memory limit", container.Name))
		}
	}
	if grace := spec.TerminationGracePeriodSeconds; grace != nil && *grace < 10 {
		found = append(found, "terminationGracePeriodSeconds is shorter than the preStop hook")
	}
	if wantsGPU(spec) && !tolerates(spec, string(gpu)) {
		found = append(found, "the pod asks for a GPU and does not tolerate its taint")
	}
	return found
}

func wantsGPU(spec *corev1.PodSpec) bool {
	for i := range spec.Containers {
		if quantity, there := spec.Containers[i].Resources.Limits[gpu]; there && !quantity.IsZero() {
			return true
		}
	}
	return false
}

func tolerates(spec *corev1.PodSpec, key string) bool {
	for _, toleration := range spec.Tolerations {
		if toleration.Key == key {
			return true
		}
	}
	return false
}

func main() {
	certs := flag.String("certs", "", "directory of tls.crt and tls.key")
	port := flag.Int("port", 9443, "port of 127.0.0.1 to listen on")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			fail(err)
		}
	}
	decoder := admission.NewDecoder(scheme)
	server := webhook.NewServer(webhook.Options{
		Host: "127.0.0.1", Port: *port, CertDir: *certs,
		// API servers offer nothing else to a Service, and kubebuilder's scaffold does the same.
		TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }},
	})
	server.Register("/mutate", &admission.Webhook{Handler: &mutator{decoder}})
	server.Register("/validate", &admission.Webhook{Handler: &validator{decoder}})
	if err := server.Start(ctrl.SetupSignalHandler()); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "peer:", err)
	os.Exit(1)
}
