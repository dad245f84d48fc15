package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

var controllerChecks = []check{
	{"leader election", election},
	{"event recorder of core/v1", recordCore},
	{"event recorder of events.k8s.io/v1", recordEvents},
}

func decode(text []byte, into any) error { return json.Unmarshal(text, into) }

func election(s *suite) error {
	var lock sync.Mutex
	leaders := []string{}
	candidate := func(ctx context.Context, name string) {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Name: "lock", Namespace: s.namespace}, Client: s.client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { lock.Lock(); leaders = append(leaders, name); lock.Unlock() },
				OnStoppedLeading: func() {},
			},
		})
	}
	led := func(expected string) error {
		return s.until("leaders are "+expected, func() (bool, error) {
			lock.Lock()
			defer lock.Unlock()
			return fmt.Sprint(leaders) == expected, nil
		})
	}
	first, resign := context.WithCancel(s.ctx)
	defer resign()
	second, end := context.WithCancel(s.ctx)
	defer end()
	go candidate(first, "one")
	if err := led("[one]"); err != nil {
		return err
	}
	go candidate(second, "two")
	time.Sleep(time.Second)
	if err := led("[one]"); err != nil {
		return err
	}
	resign()
	if err := led("[one two]"); err != nil {
		return err
	}
	lease, err := s.client.CoordinationV1().Leases(s.namespace).Get(s.ctx, "lock", metav1.GetOptions{})
	return all(err, want("holder", *lease.Spec.HolderIdentity, "two"))
}

func recordCore(s *suite) error {
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: s.client.CoreV1().Events("")})
	about := configMap("a", nil)
	about.Namespace, about.UID = s.namespace, "some-uid"
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "checker"})
	for range 3 {
		recorder.Event(about, corev1.EventTypeWarning, "Failed", "it did not work")
	}
	return s.until("one event, counted", func() (bool, error) {
		found, err := s.client.CoreV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=a,involvedObject.kind=ConfigMap,reason=Failed,type=Warning",
		})
		return err == nil && len(found.Items) == 1 && found.Items[0].Count == 3, err
	})
}

func recordEvents(s *suite) error {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.client.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(s.ctx); err != nil {
		return err
	}
	about := configMap("a", nil)
	about.Namespace, about.UID = s.namespace, "some-uid"
	recorder := broadcaster.NewRecorder(scheme.Scheme, "checker.example.org/one")
	for _, series := range []bool{false, true} { // two at once meet in the recorder, which then waits 10 s
		recorder.Eventf(about, nil, corev1.EventTypeNormal, "Worked", "Working", "all %s", "well")
		if err := s.until("one event, then a series", func() (bool, error) {
			found, err := s.client.EventsV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "regarding.name=a,reason=Worked"})
			return err == nil && len(found.Items) == 1 && series == (found.Items[0].Series != nil), err
		}); err != nil {
			return err
		}
	}
	old, err := s.client.CoreV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=a"})
	return all(err, want("events in core/v1", len(old.Items), 1), want("message there", old.Items[0].Message, "all well"),
		want("source there", old.Items[0].ReportingController, "checker.example.org/one"))
}
