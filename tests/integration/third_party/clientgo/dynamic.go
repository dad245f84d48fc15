package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
)

var dynamicChecks = []check{
	{"discovery", discover},
	{"discovery, the old way", discoverLegacy},
	{"REST mapper", mapper},
	{"dynamic client", dynamicClient},
	{"dynamic list of everything that is served", listEverything},
	{"dynamic informer", dynamicInformer},
	{"metadata client", metadataClient},
	{"tables", tables},
	{"OpenAPI v3", openAPI},
	{"version and health", health},
}

func discover(s *suite) error {
	client := discovery.NewDiscoveryClientForConfigOrDie(s.config)
	groups, resources, err := client.ServerGroupsAndResources()
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, list := range resources {
		for _, resource := range list.APIResources {
			found[list.GroupVersion+"/"+resource.Name] = true
		}
	}
	for _, name := range []string{
		"v1/pods", "v1/pods/status", "v1/pods/eviction", "v1/pods/log", "storage.k8s.io/v1/csistoragecapacities",
		"coordination.k8s.io/v1/leases", "events.k8s.io/v1/events", "authorization.k8s.io/v1/selfsubjectaccessreviews",
	} {
		if !found[name] {
			return fmt.Errorf("%s is not among %v", name, found)
		}
	}
	return want("groups are there", len(groups) >= 5, true)
}

func discoverLegacy(s *suite) error {
	client := discovery.NewDiscoveryClientForConfigOrDie(s.config)
	client.UseLegacyDiscovery = true
	lists, err := client.ServerPreferredResources()
	if err != nil {
		return err
	}
	return want("storage.k8s.io/v1 is there", slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
		return l.GroupVersion == "storage.k8s.io/v1" && len(l.APIResources) >= 5
	}), true)
}

func (s *suite) mapper() *restmapper.DeferredDiscoveryRESTMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery.NewDiscoveryClientForConfigOrDie(s.config)))
}

func mapper(s *suite) error {
	mapping, err := s.mapper().RESTMapping(schema.GroupKind{Group: "storage.k8s.io", Kind: "CSIStorageCapacity"})
	if err != nil {
		return err
	}
	short, err := restmapper.NewShortcutExpander(s.mapper(), discovery.NewDiscoveryClientForConfigOrDie(s.config), nil).
		ResourceFor(schema.GroupVersionResource{Resource: "pvc"})
	return all(err, want("resource", mapping.Resource.Resource, "csistoragecapacities"), want("scope", string(mapping.Scope.Name()), "namespace"),
		want("short name", short.Resource, "persistentvolumeclaims"))
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func dynamicClient(s *suite) error {
	client := dynamic.NewForConfigOrDie(s.config).Resource(configMaps).Namespace(s.namespace)
	made, err := client.Create(s.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}, "data": map[string]any{"k": "v"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(made.Object, "w", "data", "k"); err != nil {
		return err
	}
	if made, err = client.Update(s.ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	value, _, _ := unstructured.NestedString(made.Object, "data", "k")
	patched, err := client.Patch(s.ctx, "a", types.MergePatchType, []byte(`{"data":{"x":"y"}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	data, _, _ := unstructured.NestedStringMap(patched.Object, "data")
	list, err := client.List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return all(want("value", value, "w"), want("data", fmt.Sprint(data), "map[k:w x:y]"), want("kind of the list", list.GetKind(), "ConfigMapList"),
		want("kind of an item", list.Items[0].GetKind(), "ConfigMap"), client.Delete(s.ctx, "a", metav1.DeleteOptions{}))
}

func listEverything(s *suite) error {
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(s.config).ServerPreferredResources()
	if err != nil {
		return err
	}
	client, count := dynamic.NewForConfigOrDie(s.config), 0
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") {
				continue
			}
			found, err := client.Resource(version.WithResource(resource.Name)).List(s.ctx, metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("%s: %w", resource.Name, err)
			}
			if err := want(resource.Name+": kind", found.GetKind(), resource.Kind+"List"); err != nil {
				return err
			}
			count++
		}
	}
	return want("kinds listed", count >= 15, true)
}

func dynamicInformer(s *suite) error {
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(s.config), 0, s.namespace, nil)
	lister := factory.ForResource(configMaps).Lister().ByNamespace(s.namespace)
	factory.Start(s.ctx.Done())
	factory.WaitForCacheSync(s.ctx.Done())
	if err := s.make("a"); err != nil {
		return err
	}
	return s.until("it is seen", func() (bool, error) {
		_, err := lister.Get("a")
		return err == nil, nil
	})
}

func metadataClient(s *suite) error {
	if err := s.make("a"); err != nil {
		return err
	}
	// As it is used by controllers: it asks for protobuf first.
	client := metadata.NewForConfigOrDie(metadata.ConfigFor(s.config)).Resource(configMaps).Namespace(s.namespace)
	got, err := client.Get(s.ctx, "a", metav1.GetOptions{})
	if err != nil {
		return err
	}
	list, err := client.List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	w, err := client.Watch(s.ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	patched, err := client.Patch(s.ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	policy := metav1.DeletePropagationBackground
	if err := client.Delete(s.ctx, "a", metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &got.UID},
	}); err != nil {
		return err
	}
	return all(want("name", got.Name, "a"), want("label", patched.Labels["x"], "y"), expect(w, "MODIFIED a", "DELETED a"))
}

func tables(s *suite) error {
	table := &metav1.Table{}
	if _, err := s.client.CoreV1().Pods(s.namespace).Create(s.ctx, pod("p"), metav1.CreateOptions{}); err != nil {
		return err
	}
	body, err := s.client.CoreV1().RESTClient().Get().Namespace(s.namespace).Resource("pods").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json").Do(s.ctx).Raw()
	if err != nil {
		return err
	}
	if err := decode(body, table); err != nil {
		return err
	}
	columns := []string{}
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			columns = append(columns, column.Name)
		}
	}
	row := &metav1.PartialObjectMetadata{}
	if len(table.Rows) != 1 {
		return fmt.Errorf("%d rows", len(table.Rows))
	}
	return all(want("columns", strings.Join(columns, " "), "Name Ready Status Restarts Age"), decode(table.Rows[0].Object.Raw, row),
		want("row", row.Name, "p"), want("cells", fmt.Sprint(table.Rows[0].Cells[:4]), "[p 0/1 Pending 0]"))
}

func openAPI(s *suite) error {
	paths, err := discovery.NewDiscoveryClientForConfigOrDie(s.config).OpenAPIV3().Paths()
	if err != nil {
		return err
	}
	for _, path := range []string{"api/v1", "apis/storage.k8s.io/v1"} {
		document, found := paths[path]
		if !found {
			return fmt.Errorf("no %s", path)
		}
		text, err := document.Schema("application/json")
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), "x-kubernetes-group-version-kind") {
			return errors.New(path + " names no kinds")
		}
	}
	return nil
}

func health(s *suite) error {
	client := discovery.NewDiscoveryClientForConfigOrDie(s.config)
	version, err := client.ServerVersion()
	if err != nil {
		return err
	}
	for _, path := range []string{"/readyz", "/livez", "/healthz"} {
		text, err := client.RESTClient().Get().AbsPath(path).Do(s.ctx).Raw()
		if err := all(err, want(path, string(text), "ok")); err != nil {
			return err
		}
	}
	_, err = client.RESTClient().Get().AbsPath("/nowhere").Do(s.ctx).Raw()
	return all(want("major", version.Major, "1"), want("nowhere", apierrors.IsNotFound(err), true))
}
