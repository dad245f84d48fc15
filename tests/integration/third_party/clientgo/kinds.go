package main

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

var kindChecks = []check{
	{"every kind through its typed client", everyKind},
	{"reviews", reviews},
	{"times and quantities come back as they went", exactValues},
}

// typed is what all typed clients of one kind have.
type typed[T metav1.Object] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

func roundTrip[T metav1.Object](s *suite, client typed[T], object T) error {
	kind := fmt.Sprintf("%T", object)
	if object.GetName() == "" {
		object.SetName(s.namespace)
	}
	made, err := client.Create(s.ctx, object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%s: create: %w", kind, err)
	}
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // a controller may have seen it already
		now, err := client.Get(s.ctx, made.GetName(), metav1.GetOptions{})
		if err == nil {
			now.SetLabels(map[string]string{"a": "b"})
			_, err = client.Update(s.ctx, now, metav1.UpdateOptions{})
		}
		return err
	}); err != nil {
		return fmt.Errorf("%s: update: %w", kind, err)
	}
	got, err := client.Get(s.ctx, made.GetName(), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%s: get: %w", kind, err)
	}
	if err := want(kind+": label", got.GetLabels()["a"], "b"); err != nil {
		return err
	}
	if err := client.Delete(s.ctx, made.GetName(), metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("%s: delete: %w", kind, err)
	}
	return s.until(kind+" is gone", func() (bool, error) {
		_, err := client.Get(s.ctx, made.GetName(), metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func everyKind(s *suite) error {
	core, storage, name := s.client.CoreV1(), s.client.StorageV1(), s.namespace
	volume := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{"storage": resource.MustParse("1Gi")}, StorageClassName: "nobody",
		AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "a.example.org", VolumeHandle: "h"}},
	}}
	source := corev1.ObjectReference{Kind: "Pod", Namespace: name, Name: "p", UID: "u"}
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	size := resource.MustParse("1Gi")
	return all(
		roundTrip(s, core.Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name + "y"}}),
		roundTrip(s, core.Nodes(), &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}),
		roundTrip(s, core.Pods(name), pod("")),
		roundTrip(s, core.PersistentVolumeClaims(name), claim("", "1Gi")),
		roundTrip(s, core.PersistentVolumes(), volume),
		roundTrip(s, core.Events(name), &corev1.Event{InvolvedObject: source, Reason: "R", Message: "m", Type: "Normal"}),
		roundTrip(s, core.ConfigMaps(name), configMap("", nil)),
		roundTrip(s, core.Secrets(name), &corev1.Secret{}),
		roundTrip(s, core.ServiceAccounts(name), &corev1.ServiceAccount{}),
		roundTrip(s, core.ResourceQuotas(name), &corev1.ResourceQuota{}),
		roundTrip(s, core.LimitRanges(name), &corev1.LimitRange{}),
		roundTrip(s, storage.StorageClasses(), &storagev1.StorageClass{Provisioner: "a.example.org", VolumeBindingMode: &mode}),
		roundTrip(s, storage.CSIDrivers(), &storagev1.CSIDriver{}),
		roundTrip(s, storage.CSINodes(), &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{}}}),
		roundTrip(s, storage.CSIStorageCapacities(name), &storagev1.CSIStorageCapacity{StorageClassName: "x", Capacity: &size}),
		roundTrip(s, storage.VolumeAttachments(), &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "a.example.org", NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
		}}),
		roundTrip(s, s.client.CoordinationV1().Leases(name), &coordinationv1.Lease{}),
	)
}

func reviews(s *suite) error {
	access, err := s.client.AuthorizationV1().SelfSubjectAccessReviews().Create(s.ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	token, err := s.client.AuthenticationV1().TokenReviews().Create(s.ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: "wrong"},
	}, metav1.CreateOptions{})
	return all(err, want("allowed", access.Status.Allowed, true), want("authenticated", token.Status.Authenticated, false))
}

func exactValues(s *suite) error {
	now := metav1.NewMicroTime(time.Now())
	lease, err := s.client.CoordinationV1().Leases(s.namespace).Create(s.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: coordinationv1.LeaseSpec{RenewTime: &now},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if !lease.Spec.RenewTime.Truncate(time.Microsecond).Equal(now.Truncate(time.Microsecond)) {
		return fmt.Errorf("renewTime %v became %v", now, lease.Spec.RenewTime)
	}
	for asked, kept := range map[string]string{"30716Mi": "30716Mi", "1024Mi": "1Gi", "1.5Gi": "1536Mi", "5e3": "5e3", "100000": "100k"} {
		made, err := s.client.CoreV1().PersistentVolumeClaims(s.namespace).Create(s.ctx, claim(fmt.Sprintf("c-%x", asked), asked), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		size := made.Spec.Resources.Requests["storage"]
		if err := want(asked, size.String(), kept); err != nil {
			return err
		}
	}
	return nil
}
