package main

import (
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

var objectChecks = []check{
	{"create, get, update, delete", lifecycle},
	{"generateName", generateName},
	{"list in pages", pages},
	{"update conflict and RetryOnConflict", conflicts},
	{"JSON patch", jsonPatch},
	{"merge patch", mergePatch},
	{"strategic merge patch", strategicPatch},
	{"delete with preconditions", preconditions},
	{"delete collection by label", deleteCollection},
	{"dry run", dryRun},
	{"finalizers", finalizers},
	{"owner references: background, foreground, orphan", owners},
	{"namespace deletion", namespaceDeletion},
	{"pod: bind, status, evict", podSubresources},
	{"binary data and stringData", secrets},
	{"field selectors", fieldSelectors},
	{"label selectors", labelSelectors},
}

func lifecycle(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	made, err := maps.Create(s.ctx, configMap("a", map[string]string{"k": "v"}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if made.UID == "" || made.ResourceVersion == "" || made.CreationTimestamp.IsZero() || made.Namespace != s.namespace {
		return fmt.Errorf("incomplete metadata: %+v", made.ObjectMeta)
	}
	got, err := maps.Get(s.ctx, "a", metav1.GetOptions{})
	if err != nil {
		return err
	}
	got.Data["k"] = "w"
	updated, err := maps.Update(s.ctx, got, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if updated.ResourceVersion == made.ResourceVersion || updated.Data["k"] != "w" || updated.UID != made.UID {
		return fmt.Errorf("update: %+v", updated)
	}
	same, err := maps.Update(s.ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if err := want("resourceVersion after an empty update", same.ResourceVersion, updated.ResourceVersion); err != nil {
		return err
	}
	if err := maps.Delete(s.ctx, "a", metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err = maps.Get(s.ctx, "a", metav1.GetOptions{})
	return want("gone", apierrors.IsNotFound(err), true)
}

func generateName(s *suite) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "some-"}}
	one, err := s.client.CoreV1().ConfigMaps(s.namespace).Create(s.ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	other, err := s.client.CoreV1().ConfigMaps(s.namespace).Create(s.ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return all(want("length of the name", len(one.Name), len("some-")+5), want("same names", one.Name == other.Name, false))
}

func pages(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	for i := range 25 {
		if _, err := maps.Create(s.ctx, configMap(fmt.Sprintf("m-%02d", i), nil), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	seen, token, version := map[string]bool{}, "", ""
	for rounds := 1; ; rounds++ {
		page, err := maps.List(s.ctx, metav1.ListOptions{Limit: 10, Continue: token})
		if err != nil {
			return err
		}
		for _, item := range page.Items {
			seen[item.Name] = true
		}
		if rounds == 1 {
			version = page.ResourceVersion
			if page.RemainingItemCount == nil || *page.RemainingItemCount != 16 {
				return fmt.Errorf("remainingItemCount: %v", page.RemainingItemCount)
			}
			// What is made now is not part of the list begun.
			if _, err := maps.Create(s.ctx, configMap("m-99", nil), metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		if err := want("resourceVersion of all pages", page.ResourceVersion, version); err != nil {
			return err
		}
		if token = page.Continue; token == "" {
			return all(want("pages", rounds, 3), want("objects", len(seen), 26))
		}
	}
}

func conflicts(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	old, err := maps.Create(s.ctx, configMap("a", map[string]string{}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	changed := old.DeepCopy()
	changed.Data = map[string]string{"k": "v"}
	if _, err := maps.Update(s.ctx, changed, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if _, err = maps.Update(s.ctx, changed, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		return fmt.Errorf("second update: %v", err)
	}
	var group sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		group.Add(1)
		go func() {
			defer group.Done()
			backoff := retry.DefaultRetry
			backoff.Steps = 100
			errs[i] = retry.RetryOnConflict(backoff, func() error {
				now, err := maps.Get(s.ctx, "a", metav1.GetOptions{})
				if err != nil {
					return err
				}
				now.Data[fmt.Sprint(i)] = "was here"
				_, err = maps.Update(s.ctx, now, metav1.UpdateOptions{})
				return err
			})
		}()
	}
	group.Wait()
	end, err := maps.Get(s.ctx, "a", metav1.GetOptions{})
	return all(errors.Join(errs...), err, want("keys after 8 writers", len(end.Data), 9))
}

func (s *suite) patched(kind types.PatchType, patch string) (*corev1.Pod, error) {
	pods := s.client.CoreV1().Pods(s.namespace)
	if _, err := pods.Create(s.ctx, pod("p"), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return pods.Patch(s.ctx, "p", kind, []byte(patch), metav1.PatchOptions{})
}

func jsonPatch(s *suite) error {
	done, err := s.patched(types.JSONPatchType, `[
		{"op":"test","path":"/metadata/labels/app","value":"p"},
		{"op":"add","path":"/metadata/annotations","value":{"a/b":"c"}},
		{"op":"replace","path":"/metadata/labels/app","value":"q"}]`)
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Pods(s.namespace).Patch(s.ctx, "p", types.JSONPatchType,
		[]byte(`[{"op":"test","path":"/metadata/labels/app","value":"other"}]`), metav1.PatchOptions{})
	return all(want("label", done.Labels["app"], "q"), want("annotation", done.Annotations["a/b"], "c"),
		want("a failed test is invalid", apierrors.IsInvalid(err), true))
}

func mergePatch(s *suite) error {
	done, err := s.patched(types.MergePatchType, `{"metadata":{"labels":{"app":null,"x":"y"}},"spec":{"activeDeadlineSeconds":60}}`)
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Pods(s.namespace).Patch(s.ctx, "p", types.MergePatchType,
		[]byte(`{"metadata":{"resourceVersion":"1","labels":{"x":"z"}}}`), metav1.PatchOptions{})
	return all(want("labels", fmt.Sprint(done.Labels), "map[x:y]"), want("deadline", *done.Spec.ActiveDeadlineSeconds, 60),
		want("a stale resourceVersion conflicts", apierrors.IsConflict(err), true))
}

func strategicPatch(s *suite) error {
	done, err := s.patched(types.StrategicMergePatchType, `{
		"metadata":{"finalizers":["example.org/one"]},
		"spec":{"containers":[{"name":"main","image":"other:2"}]}}`)
	if err != nil {
		return err
	}
	done, err = s.client.CoreV1().Pods(s.namespace).Patch(s.ctx, "p", types.StrategicMergePatchType,
		[]byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.org/one"]}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	return all(want("image", done.Spec.Containers[0].Image, "other:2"), want("command stays", len(done.Spec.Containers[0].Command), 2),
		want("containers", len(done.Spec.Containers), 1), want("finalizers", len(done.Finalizers), 0))
}

func preconditions(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	made, err := maps.Create(s.ctx, configMap("a", nil), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	other, version := types.UID("11111111-2222-3333-4444-555555555555"), "1"
	wrongUID := maps.Delete(s.ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	wrongVersion := maps.Delete(s.ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
	right := maps.Delete(s.ctx, "a", metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &made.UID, ResourceVersion: &made.ResourceVersion},
	})
	return all(want("wrong uid conflicts", apierrors.IsConflict(wrongUID), true),
		want("wrong resourceVersion conflicts", apierrors.IsConflict(wrongVersion), true), right)
}

func deleteCollection(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	for i := range 6 {
		object := configMap(fmt.Sprint("m", i), nil)
		object.Labels = map[string]string{"even": fmt.Sprint(i%2 == 0)}
		if _, err := maps.Create(s.ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := maps.DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "even=true"}); err != nil {
		return err
	}
	left, err := maps.List(s.ctx, metav1.ListOptions{LabelSelector: "even"})
	return all(err, want("left", len(left.Items), 3))
}

func dryRun(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	if _, err := maps.Create(s.ctx, configMap("a", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return err
	}
	_, err := maps.Get(s.ctx, "a", metav1.GetOptions{})
	if err := want("not made", apierrors.IsNotFound(err), true); err != nil {
		return err
	}
	if _, err := maps.Create(s.ctx, configMap("a", nil), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := maps.Delete(s.ctx, "a", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return err
	}
	_, err = maps.Get(s.ctx, "a", metav1.GetOptions{})
	return err
}

func finalizers(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	object := configMap("a", nil)
	object.Finalizers = []string{"example.org/hold"}
	if _, err := maps.Create(s.ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := maps.Delete(s.ctx, "a", metav1.DeleteOptions{}); err != nil {
		return err
	}
	held, err := maps.Get(s.ctx, "a", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if held.DeletionTimestamp == nil {
		return fmt.Errorf("no deletionTimestamp")
	}
	held.Finalizers = nil
	if _, err := maps.Update(s.ctx, held, metav1.UpdateOptions{}); err != nil {
		return err
	}
	_, err = maps.Get(s.ctx, "a", metav1.GetOptions{})
	return want("gone", apierrors.IsNotFound(err), true)
}

func owners(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	expected := map[metav1.DeletionPropagation]bool{
		metav1.DeletePropagationBackground: false, metav1.DeletePropagationForeground: false, metav1.DeletePropagationOrphan: true,
	}
	for policy, stays := range expected {
		owner, err := maps.Create(s.ctx, configMap("owner", nil), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		block := true
		owned := configMap("owned", nil)
		owned.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: &block},
		}
		if _, err := maps.Create(s.ctx, owned, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := maps.Delete(s.ctx, "owner", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			return err
		}
		err = s.until(fmt.Sprintf("%s is done", policy), func() (bool, error) {
			_, err := maps.Get(s.ctx, "owner", metav1.GetOptions{})
			left, other := maps.Get(s.ctx, "owned", metav1.GetOptions{})
			if stays {
				return apierrors.IsNotFound(err) && other == nil && len(left.OwnerReferences) == 0, nil
			}
			return apierrors.IsNotFound(err) && apierrors.IsNotFound(other), nil
		})
		if err != nil {
			return err
		}
		_ = maps.Delete(s.ctx, "owned", metav1.DeleteOptions{})
	}
	return nil
}

func namespaceDeletion(s *suite) error {
	spaces := s.client.CoreV1().Namespaces()
	if _, err := spaces.Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "x"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := s.client.CoreV1().Secrets(s.namespace+"x").Create(s.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := spaces.Delete(s.ctx, s.namespace+"x", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := s.until("the namespace is gone", func() (bool, error) {
		_, err := spaces.Get(s.ctx, s.namespace+"x", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}); err != nil {
		return err
	}
	left, err := s.client.CoreV1().Secrets(s.namespace+"x").List(s.ctx, metav1.ListOptions{})
	return all(err, want("objects left", len(left.Items), 0))
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody",
			Containers:    []corev1.Container{{Name: "main", Image: "any", Command: []string{"sleep", "1"}}},
		},
	}
}

func podSubresources(s *suite) error {
	pods := s.client.CoreV1().Pods(s.namespace)
	made, err := pods.Create(s.ctx, pod("p"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	nodes, err := s.client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	node := nodes.Items[0].Name
	bound := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: s.namespace, UID: made.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	if err := pods.Bind(s.ctx, bound, metav1.CreateOptions{}); err != nil {
		return err
	}
	twice := pods.Bind(s.ctx, bound, metav1.CreateOptions{})
	if err := want("binding twice conflicts", apierrors.IsConflict(twice), true); err != nil {
		return err
	}
	if err := s.until("the pod is ready", func() (bool, error) {
		now, err := pods.Get(s.ctx, "p", metav1.GetOptions{})
		return err == nil && now.Status.Phase == corev1.PodRunning && now.Spec.NodeName == node, err
	}); err != nil {
		return err
	}
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := pods.Get(s.ctx, "p", metav1.GetOptions{})
		if err != nil {
			return err
		}
		seconds := int64(60)
		now.Spec.ActiveDeadlineSeconds, now.Status.Message = &seconds, "kept"
		now, err = pods.UpdateStatus(s.ctx, now, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		return all(want("spec is left as it was", now.Spec.ActiveDeadlineSeconds == nil, true), want("message", now.Status.Message, "kept"))
	}); err != nil {
		return err
	}
	if err := pods.EvictV1(s.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: s.namespace}}); err != nil {
		return err
	}
	return s.until("the evicted pod is gone", func() (bool, error) {
		_, err := pods.Get(s.ctx, "p", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func secrets(s *suite) error {
	bytes := []byte{0, 255, 10, 128}
	made, err := s.client.CoreV1().Secrets(s.namespace).Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string][]byte{"b": bytes}, StringData: map[string]string{"s": "text"},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	object := configMap("a", nil)
	object.BinaryData = map[string][]byte{"b": bytes}
	binary, err := s.client.CoreV1().ConfigMaps(s.namespace).Create(s.ctx, object, metav1.CreateOptions{})
	return all(err, want("type", made.Type, corev1.SecretTypeOpaque), want("bytes", string(made.Data["b"]), string(bytes)),
		want("text", string(made.Data["s"]), "text"), want("binaryData", string(binary.BinaryData["b"]), string(bytes)))
}

func fieldSelectors(s *suite) error {
	for _, name := range []string{"one", "two"} {
		if _, err := s.client.CoreV1().Pods(s.namespace).Create(s.ctx, pod(name), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for selector, expected := range map[string]int{
		"metadata.name=one": 1, "metadata.name!=one": 1, "status.phase=Pending": 2, "spec.nodeName=": 2, "spec.nodeName=node-1": 0,
		"spec.schedulerName=nobody,metadata.name=two": 1, "metadata.namespace=" + s.namespace: 2, "spec.restartPolicy=Always": 2,
	} {
		found, err := s.client.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: selector})
		if err := all(err, want(selector, len(found.Items), expected)); err != nil {
			return err
		}
	}
	_, err := s.client.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "spec.unknown=1"})
	return want("an unknown field is a bad request", apierrors.IsBadRequest(err), true)
}

func labelSelectors(s *suite) error {
	for name, labels := range map[string]map[string]string{"a": {"x": "1"}, "b": {"x": "2", "y": ""}, "c": nil} {
		object := configMap(name, nil)
		object.Labels = labels
		if _, err := s.client.CoreV1().ConfigMaps(s.namespace).Create(s.ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for selector, expected := range map[string]int{
		"x": 2, "x=1": 1, "x in (1,2)": 2, "x notin (1)": 3, "!x": 2, "x,y": 1, "x!=1": 3, "y=": 1,
	} {
		found, err := s.client.CoreV1().ConfigMaps(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: selector})
		if err := all(err, want(selector, len(found.Items), expected)); err != nil {
			return err
		}
	}
	return nil
}
