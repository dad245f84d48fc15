package main

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var errorChecks = []check{
	{"errors are typed, with details", typedErrors},
	{"field validation: strict and warn", fieldValidation},
	{"protobuf and JSON, each way", contentTypes},
	{"server-side apply is refused by name", serverSideApply},
	{"a wrong token is refused", wrongToken},
	{"quota and limits", quotas},
}

func typedErrors(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	_, missing := maps.Get(s.ctx, "none", metav1.GetOptions{})
	var status *apierrors.StatusError
	if !errors.As(missing, &status) || status.ErrStatus.Details == nil {
		return fmt.Errorf("not found: %#v", missing)
	}
	details := status.ErrStatus.Details
	if _, err := maps.Create(s.ctx, configMap("a", nil), metav1.CreateOptions{}); err != nil {
		return err
	}
	_, twice := maps.Create(s.ctx, configMap("a", nil), metav1.CreateOptions{})
	_, invalid := maps.Create(s.ctx, configMap("Not_A_Name", nil), metav1.CreateOptions{})
	_, nowhere := s.client.CoreV1().ConfigMaps("nowhere").Create(s.ctx, configMap("a", nil), metav1.CreateOptions{})
	wrong, err := maps.Get(s.ctx, "a", metav1.GetOptions{})
	if err != nil {
		return err
	}
	wrong.UID = "other"
	_, otherUID := maps.Update(s.ctx, wrong, metav1.UpdateOptions{})
	causes := 0
	if errors.As(invalid, &status) && status.ErrStatus.Details != nil {
		causes = len(status.ErrStatus.Details.Causes)
	}
	_, unserved := s.client.FlowcontrolV1().FlowSchemas().List(s.ctx, metav1.ListOptions{})
	return all(want("kind", details.Kind, "configmaps"), want("name", details.Name, "none"),
		want("exists", apierrors.IsAlreadyExists(twice), true), want("invalid", apierrors.IsInvalid(invalid), true),
		want("has causes", causes > 0, true), want("no namespace", apierrors.IsNotFound(nowhere), true),
		want("another uid conflicts", apierrors.IsConflict(otherUID), true), want("unserved", apierrors.IsNotFound(unserved), true))
}

type warnings struct{ said []string }

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { w.said = append(w.said, text) }

func fieldValidation(s *suite) error {
	heard := &warnings{}
	config := rest.CopyConfig(s.config)
	config.WarningHandler = heard
	raw := kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient()
	body := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"unknown":1}`)
	post := func(validation string) error {
		return raw.Post().Namespace(s.namespace).Resource("configmaps").Param("fieldValidation", validation).
			SetHeader("Content-Type", "application/json").Body(body).Do(s.ctx).Error()
	}
	strict := post("Strict")
	if !apierrors.IsBadRequest(strict) || !strings.Contains(strict.Error(), `unknown field "unknown"`) {
		return fmt.Errorf("strict: %v", strict)
	}
	if err := post("Warn"); err != nil {
		return err
	}
	return want("warnings", fmt.Sprint(heard.said), `[unknown field "unknown"]`)
}

func contentTypes(s *suite) error {
	config := rest.CopyConfig(s.config)
	for _, pair := range [][2]string{
		{"application/vnd.kubernetes.protobuf", "application/json"},
		{"application/json", "application/vnd.kubernetes.protobuf"},
		{"application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"},
	} {
		config.ContentType, config.AcceptContentTypes = pair[0], pair[1]
		maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(s.namespace)
		wanted := configMap("", map[string]string{"key": "value"})
		wanted.GenerateName = "a-"
		made, err := maps.Create(s.ctx, wanted, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("%v: %w", pair, err)
		}
		if err := want("data", made.Data["key"], "value"); err != nil {
			return fmt.Errorf("%v: %w", pair, err)
		}
	}
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf"
	maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(s.namespace)
	_, err := maps.Get(s.ctx, "none", metav1.GetOptions{})
	return want("a Status in protobuf", apierrors.IsNotFound(err), true)
}

func serverSideApply(s *suite) error {
	force := true
	_, err := s.client.CoreV1().ConfigMaps(s.namespace).Patch(s.ctx, "a", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`),
		metav1.PatchOptions{FieldManager: "me", Force: &force})
	return want("refused", apierrors.IsUnsupportedMediaType(err), true)
}

func wrongToken(s *suite) error {
	config := rest.CopyConfig(s.config)
	config.BearerToken, config.BearerTokenFile = "wrong", ""
	config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, "", ""
	_, err := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	return want("unauthorized", apierrors.IsUnauthorized(err), true)
}

func quotas(s *suite) error {
	if _, err := s.client.CoreV1().ResourceQuotas(s.namespace).Create(s.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"requests.storage": resource.MustParse("5Gi"), "persistentvolumeclaims": resource.MustParse("2"),
		}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := s.client.CoreV1().LimitRanges(s.namespace).Create(s.ctx, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "l"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypePersistentVolumeClaim, Max: corev1.ResourceList{"storage": resource.MustParse("4Gi")},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	make := func(name, size string) error {
		_, err := s.client.CoreV1().PersistentVolumeClaims(s.namespace).Create(s.ctx, claim(name, size), metav1.CreateOptions{})
		return err
	}
	if err := make("a", "3Gi"); err != nil {
		return err
	}
	if err := s.until("the quota counts", func() (bool, error) {
		now, err := s.client.CoreV1().ResourceQuotas(s.namespace).Get(s.ctx, "q", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		used := now.Status.Used["requests.storage"]
		return used.String() == "3Gi", nil
	}); err != nil {
		return err
	}
	return all(want("past the quota", apierrors.IsForbidden(make("b", "3Gi")), true),
		want("past the limit", apierrors.IsForbidden(make("c", "4097Mi")), true), make("d", "2Gi"),
		want("past the count", apierrors.IsForbidden(make("e", "1")), true))
}

func claim(name, size string) *corev1.PersistentVolumeClaim {
	class := "nobody"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse(size)}},
		},
	}
}
