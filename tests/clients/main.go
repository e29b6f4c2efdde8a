// Informers of client-go against an API server, for the tests: each has a connection of its own and keeps a store.
// Each line on standard input requests all stores; the answer is one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// watcher is one informer and what it follows.
type watcher struct {
	Client   string `json:"client"`
	Resource string `json:"resource"`
	Selector string `json:"selector"`
	informer cache.SharedIndexInformer
}

// shown is a watcher's store when it was requested.
type shown struct {
	*watcher
	Synced bool `json:"synced"`
	// Objects has the resource version of each object by "namespace/name".
	Objects map[string]string `json:"objects"`
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the API server")
	namespace := flag.String("namespace", "default", "namespace to follow")
	resources := flag.String("resources", "v1/configmaps", "comma-separated GROUP/VERSION/RESOURCE, or VERSION/RESOURCE of the core group")
	selectors := flag.String("selectors", "", "semicolon-separated label selectors, taken in turns; an empty one selects everything")
	count := flag.Int("count", 1, "number of informers")
	flag.Parse()
	if err := run(*kubeconfig, *namespace, *resources, *selectors, *count); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, namespace, resources, selectors string, count int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	kinds := strings.Split(resources, ",")
	labelSelectors := strings.Split(selectors, ";")
	var watchers []*watcher
	for number := range count {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return err
		}
		// Clients with equal settings share a transport. A separate dialer gives each its own connection.
		config.Dial = (&net.Dialer{}).DialContext
		// Three clients, then the next resource, then the next selector, so that every combination occurs.
		kind := kinds[number/3%len(kinds)]
		selector := labelSelectors[number/3/len(kinds)%len(labelSelectors)]
		one, err := start(ctx, config, number%3, namespace, kind, selector)
		if err != nil {
			return err
		}
		watchers = append(watchers, one)
	}
	return answer(watchers)
}

// parseResource reads GROUP/VERSION/RESOURCE or VERSION/RESOURCE.
func parseResource(text string) (schema.GroupVersionResource, error) {
	switch parts := strings.Split(text, "/"); len(parts) {
	case 2:
		return schema.GroupVersionResource{Version: parts[0], Resource: parts[1]}, nil
	case 3:
		return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
	default:
		return schema.GroupVersionResource{}, fmt.Errorf("-resources: %q is neither GROUP/VERSION/RESOURCE nor VERSION/RESOURCE", text)
	}
}

// start starts an informer of the typed, the dynamic or the metadata client. The typed client does not
// support custom resources: the dynamic client is used for them.
func start(ctx context.Context, config *rest.Config, client int, namespace, resource, selector string) (*watcher, error) {
	kind, err := parseResource(resource)
	if err != nil {
		return nil, err
	}
	if _, err := labels.Parse(selector); err != nil {
		return nil, fmt.Errorf("-selectors: %w", err)
	}
	tweak := func(options *metav1.ListOptions) { options.LabelSelector = selector }
	one := &watcher{Resource: resource, Selector: selector}
	typed := client == 0 && strings.Contains(kind.Group, ".") == strings.HasSuffix(kind.Group, ".k8s.io")
	switch {
	case typed:
		clientset, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		factory := informers.NewSharedInformerFactoryWithOptions(clientset, 0, informers.WithNamespace(namespace), informers.WithTweakListOptions(tweak))
		generic, err := factory.ForResource(kind)
		if err != nil {
			return nil, err
		}
		one.Client, one.informer = "typed", generic.Informer()
	case client == 2:
		clientset, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		generic := metadatainformer.NewFilteredMetadataInformer(clientset, kind, namespace, 0, cache.Indexers{}, tweak)
		one.Client, one.informer = "metadata", generic.Informer()
	default:
		clientset, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		generic := dynamicinformer.NewFilteredDynamicInformer(clientset, kind, namespace, 0, cache.Indexers{}, tweak)
		one.Client, one.informer = "dynamic", generic.Informer()
	}
	go one.informer.RunWithContext(ctx)
	return one, nil
}

// answer prints all stores for every input line, until the input ends.
func answer(watchers []*watcher) error {
	input, output := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for input.Scan() {
		stores := make([]shown, 0, len(watchers))
		for _, one := range watchers {
			store := shown{watcher: one, Synced: one.informer.HasSynced(), Objects: map[string]string{}}
			for _, object := range one.informer.GetStore().List() {
				accessor, err := meta.Accessor(object)
				if err != nil {
					return err
				}
				store.Objects[accessor.GetNamespace()+"/"+accessor.GetName()] = accessor.GetResourceVersion()
			}
			stores = append(stores, store)
		}
		if err := output.Encode(stores); err != nil {
			return err
		}
	}
	return input.Err()
}
