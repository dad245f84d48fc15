package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

var informerChecks = []check{
	{"shared informers of every kind sync", informersSync},
	{"an informer follows", informerFollows},
	{"an informer in pages", informerPages},
	{"an informer lists again after 410", informerRelists},
	{"an informer goes on after its watch ended", informerResumes},
}

func informersSync(s *suite) error {
	factory := informers.NewSharedInformerFactory(s.client, 0)
	core, storage := factory.Core().V1(), factory.Storage().V1()
	for _, informer := range []cache.SharedIndexInformer{
		core.Namespaces().Informer(), core.Nodes().Informer(), core.Pods().Informer(), core.PersistentVolumeClaims().Informer(),
		core.PersistentVolumes().Informer(), core.Events().Informer(), core.ConfigMaps().Informer(), core.Secrets().Informer(),
		core.ServiceAccounts().Informer(), core.ResourceQuotas().Informer(), core.LimitRanges().Informer(),
		storage.StorageClasses().Informer(), storage.CSIDrivers().Informer(), storage.CSINodes().Informer(),
		storage.CSIStorageCapacities().Informer(), storage.VolumeAttachments().Informer(),
		factory.Coordination().V1().Leases().Informer(), factory.Events().V1().Events().Informer(),
	} {
		_ = informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { fmt.Println("# watch:", err) })
	}
	ctx, cancel := context.WithTimeout(s.ctx, 15*time.Second)
	defer cancel()
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("%v did not sync", kind)
		}
	}
	nodes, err := core.Nodes().Lister().List(labels.Everything())
	return all(err, want("nodes are there", len(nodes) > 0, true))
}

type followed struct{ added, updated, deleted, relisted atomic.Int64 }

func (f *followed) handler() cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { f.added.Add(1) },
		UpdateFunc: func(any, any) { f.updated.Add(1) },
		DeleteFunc: func(any) { f.deleted.Add(1) },
	}
}

func (f *followed) is(added, updated, deleted int64) func() (bool, error) {
	return func() (bool, error) {
		return f.added.Load() == added && f.updated.Load() == updated && f.deleted.Load() == deleted, nil
	}
}

// source lists and watches config maps; each watch may be changed before it is sent.
func (s *suite) source(change func(*metav1.ListOptions)) *cache.ListWatch {
	maps := s.client.CoreV1().ConfigMaps(s.namespace)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return maps.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			change(&o)
			return maps.Watch(ctx, o)
		},
	}
}

func (s *suite) follow(source cache.ListerWatcher) (cache.SharedIndexInformer, *followed, error) {
	informer, seen := cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, cache.Indexers{}), &followed{}
	if _, err := informer.AddEventHandler(seen.handler()); err != nil {
		return nil, nil, err
	}
	go informer.RunWithContext(s.ctx)
	return informer, seen, s.until("the informer is synced", func() (bool, error) { return informer.HasSynced(), nil })
}

func (s *suite) make(names ...string) error {
	for _, name := range names {
		if _, err := s.client.CoreV1().ConfigMaps(s.namespace).Create(s.ctx, configMap(name, nil), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func informerFollows(s *suite) error {
	if err := s.make("a", "b"); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(s.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name!=kube-root-ca.crt" }))
	informer, seen := factory.Core().V1().ConfigMaps().Informer(), &followed{}
	if _, err := informer.AddEventHandler(seen.handler()); err != nil {
		return err
	}
	factory.Start(s.ctx.Done())
	if err := s.until("two are there", seen.is(2, 0, 0)); err != nil {
		return err
	}
	changed := configMap("a", map[string]string{"k": "v"})
	if _, err := s.client.CoreV1().ConfigMaps(s.namespace).Update(s.ctx, changed, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if err := s.client.CoreV1().ConfigMaps(s.namespace).Delete(s.ctx, "b", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := all(s.make("c"), s.until("an addition, an update, a deletion", seen.is(3, 1, 1))); err != nil {
		return err
	}
	kept, err := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(s.namespace).Get("a")
	return all(err, want("content", kept.Data["k"], "v"))
}

func informerPages(s *suite) error {
	names := []string{}
	for i := range 30 {
		names = append(names, fmt.Sprint("m", i))
	}
	if err := s.make(names...); err != nil {
		return err
	}
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	reflector := cache.NewReflector(s.source(func(*metav1.ListOptions) {}), &corev1.ConfigMap{}, store, 0)
	reflector.WatchListPageSize = 10
	go reflector.RunWithContext(s.ctx)
	return s.until("all pages are there", func() (bool, error) {
		return len(store.ListKeys()) >= 30 && strings.Contains(fmt.Sprint(store.ListKeys()), "m29"), nil
	})
}

func informerRelists(s *suite) error {
	var watches atomic.Int64
	seconds := int64(1)
	informer, _, err := s.follow(s.source(func(o *metav1.ListOptions) {
		if o.SendInitialEvents != nil {
			return
		}
		switch watches.Add(1) {
		case 1:
			o.TimeoutSeconds = &seconds
		case 2:
			o.ResourceVersion = "1"
		}
	}))
	if err != nil {
		return err
	}
	time.Sleep(1200 * time.Millisecond)
	if err := s.make("later"); err != nil {
		return err
	}
	return s.until("what came after the relist is seen", func() (bool, error) {
		_, exists, err := informer.GetStore().GetByKey(s.namespace + "/later")
		return exists, err
	})
}

func informerResumes(s *suite) error {
	seconds := int64(1)
	var lists atomic.Int64
	source := s.source(func(o *metav1.ListOptions) { o.TimeoutSeconds = &seconds })
	list := source.ListWithContextFunc
	source.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		lists.Add(1)
		return list(ctx, o)
	}
	informer, _, err := s.follow(source)
	if err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		time.Sleep(700 * time.Millisecond)
		if err := s.make(name); err != nil {
			return err
		}
	}
	if err := s.until("all are seen", func() (bool, error) {
		_, exists, err := informer.GetStore().GetByKey(s.namespace + "/c")
		return exists, err
	}); err != nil {
		return err
	}
	return want("lists, though the watch ended several times, at most one", lists.Load() <= 1, true)
}
