package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

var watchChecks = []check{
	{"watch from a resourceVersion", watchFrom},
	{"watch without one begins with what is there", watchFromNothing},
	{"watch by label: leaving the selection is a deletion", watchSelection},
	{"watch ends at timeoutSeconds", watchTimeout},
	{"sendInitialEvents ends with a bookmark", initialEvents},
	{"a watch from a past that is gone: 410", watchGone},
	{"a list from the future waits, then says so", listFuture},
	{"RetryWatcher and UntilWithSync", watchTools},
}

func next(w watch.Interface) (watch.Event, error) {
	select {
	case event, open := <-w.ResultChan():
		if !open {
			return event, errors.New("the watch ended")
		}
		return event, nil
	case <-time.After(10 * time.Second):
		return watch.Event{}, errors.New("no event in 10 s")
	}
}

func expect(w watch.Interface, wanted ...string) error {
	for _, want := range wanted {
		event, err := next(w)
		if err != nil {
			return fmt.Errorf("wanted %s: %w", want, err)
		}
		name := ""
		if object, is := event.Object.(metav1.Object); is {
			name = object.GetName()
		}
		if got := string(event.Type) + " " + name; got != want {
			return fmt.Errorf("got %q, wanted %q (%v)", got, want, event.Object)
		}
	}
	return nil
}

func watchFrom(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	if _, err := maps.Create(s.ctx, configMap("before", nil), metav1.CreateOptions{}); err != nil {
		return err
	}
	list, err := maps.List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	made, err := maps.Create(s.ctx, configMap("a", nil), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	w, err := maps.Watch(s.ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	made.Data = map[string]string{"k": "v"}
	if _, err := maps.Update(s.ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if err := maps.Delete(s.ctx, "a", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return expect(w, "ADDED a", "MODIFIED a", "DELETED a")
}

func watchFromNothing(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	for _, name := range []string{"a", "b"} {
		if _, err := maps.Create(s.ctx, configMap(name, nil), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	w, err := maps.Watch(s.ctx, metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	if err != nil {
		return err
	}
	defer w.Stop()
	return expect(w, "ADDED a", "ADDED b")
}

func watchSelection(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	list, err := maps.List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	w, err := maps.Watch(s.ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, LabelSelector: "x=1"})
	if err != nil {
		return err
	}
	defer w.Stop()
	object := configMap("a", nil)
	for _, value := range []string{"0", "1", "2", "1"} {
		object.Labels = map[string]string{"x": value}
		if value == "0" {
			object, err = maps.Create(s.ctx, object, metav1.CreateOptions{})
		} else {
			object, err = maps.Update(s.ctx, object, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return expect(w, "ADDED a", "DELETED a", "ADDED a")
}

func watchTimeout(s *suite) error {
	seconds := int64(1)
	w, err := s.client.CoreV1().ConfigMaps(s.namespace).Watch(s.ctx, metav1.ListOptions{
		TimeoutSeconds: &seconds, FieldSelector: "metadata.name=none",
	})
	if err != nil {
		return err
	}
	_, err = next(w)
	return want("outcome", err.Error(), "the watch ended")
}

func initialEvents(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	if _, err := maps.Create(s.ctx, configMap("a", nil), metav1.CreateOptions{}); err != nil {
		return err
	}
	yes := true
	w, err := maps.Watch(s.ctx, metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
		FieldSelector: "metadata.name!=kube-root-ca.crt",
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	if err := expect(w, "ADDED a"); err != nil {
		return err
	}
	event, err := next(w)
	if err != nil {
		return err
	}
	bookmark, is := event.Object.(*corev1.ConfigMap)
	if !is || event.Type != watch.Bookmark || bookmark.Annotations[metav1.InitialEventsAnnotationKey] != "true" || bookmark.ResourceVersion == "" {
		return fmt.Errorf("no bookmark: %v", event)
	}
	if _, err := maps.Create(s.ctx, configMap("b", nil), metav1.CreateOptions{}); err != nil {
		return err
	}
	return expect(w, "ADDED b")
}

func watchGone(s *suite) error {
	w, err := s.client.CoreV1().ConfigMaps(s.namespace).Watch(s.ctx, metav1.ListOptions{ResourceVersion: "1"})
	if err == nil {
		defer w.Stop()
		event, failure := next(w)
		if failure != nil {
			return failure
		}
		err = apierrors.FromObject(event.Object)
	}
	return want("gone", apierrors.IsResourceExpired(err) || apierrors.IsGone(err), true)
}

func listFuture(s *suite) error {
	// The client would repeat it ten times.
	err := s.client.CoreV1().RESTClient().Get().MaxRetries(0).Namespace(s.namespace).Resource("configmaps").
		Param("resourceVersion", "999999999").Param("resourceVersionMatch", "NotOlderThan").Do(s.ctx).Error()
	return want("too large a resourceVersion", apierrors.IsTimeout(err) && apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge), true)
}

func watchTools(s *suite) error {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	first, err := maps.Create(s.ctx, configMap("first", nil), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return maps.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			seconds := int64(1) // so that it has to go on where a watch ended
			o.TimeoutSeconds = &seconds
			return maps.Watch(ctx, o)
		},
	}
	retrying, err := watchtools.NewRetryWatcherWithContext(s.ctx, first.ResourceVersion, source)
	if err != nil {
		return err
	}
	defer retrying.Stop()
	go func() {
		time.Sleep(1500 * time.Millisecond)
		_, _ = maps.Create(s.ctx, configMap("later", nil), metav1.CreateOptions{})
	}()
	if err := expect(retrying, "ADDED later"); err != nil {
		return err
	}
	_, err = watchtools.UntilWithSync(s.ctx, source, &corev1.ConfigMap{}, nil, func(event watch.Event) (bool, error) {
		object, is := event.Object.(*corev1.ConfigMap)
		return is && object.Name == "later", nil
	})
	return err
}
