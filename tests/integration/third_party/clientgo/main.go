// Uses a cluster through client-go as controllers do, and prints one line a check: "ok NAME" or "FAILED NAME: why".
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// suite is what every check gets: a namespace of its own and clients.
type suite struct {
	ctx       context.Context
	config    *rest.Config
	client    kubernetes.Interface
	namespace string
}

type check struct {
	name string
	run  func(*suite) error
}

func main() {
	only := flag.String("only", "", "run the checks whose name contains this")
	contentType := flag.String("content-type", "application/json", "what the typed clients speak")
	samples := flag.Int("samples", 0, "write so many samples of each kind that is read, in JSON and protobuf")
	seed := flag.Int64("seed", 1, "of the samples")
	read := flag.Bool("read-samples", false, "write the JSON of samples whose protobuf is read")
	flag.Parse()
	if *samples > 0 || *read {
		var err error
		if *read {
			err = readSamples(os.Stdin, os.Stdout)
		} else {
			err = writeSamples(os.Stdin, os.Stdout, *samples, *seed)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		fmt.Println("FAILED kubeconfig:", err)
		os.Exit(1)
	}
	config.ContentType = *contentType
	config.QPS, config.Burst = 1000, 1000
	client := kubernetes.NewForConfigOrDie(config)
	failed := false
	for _, group := range [][]check{objectChecks, errorChecks, kindChecks, watchChecks, informerChecks, dynamicChecks, controllerChecks} {
		for _, check := range group {
			if strings.Contains(check.name, *only) && !run(config, client, check) {
				failed = true
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}

func run(config *rest.Config, client kubernetes.Interface, check check) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	began := time.Now()
	made, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "check-"},
	}, metav1.CreateOptions{})
	if err == nil {
		s := &suite{ctx, config, client, made.Name}
		if err = s.until("each namespace has its kube-root-ca.crt", func() (bool, error) {
			_, err := client.CoreV1().ConfigMaps(made.Name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return err == nil, nil
		}); err == nil {
			err = check.run(s)
		}
		_ = client.CoreV1().Namespaces().Delete(ctx, made.Name, metav1.DeleteOptions{})
	}
	if err != nil {
		fmt.Printf("FAILED %s: %v\n", check.name, err)
		return false
	}
	fmt.Printf("ok %s\n", check.name)
	if took := time.Since(began); took > 2*time.Second {
		fmt.Printf("# %s took %.1f s\n", check.name, took.Seconds())
	}
	return true
}

// until waits for what something else in the cluster does.
func (s *suite) until(what string, holds func() (bool, error)) error {
	err := wait.PollUntilContextTimeout(s.ctx, 20*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		return holds()
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func want[T comparable](what string, got, wanted T) error {
	if got != wanted {
		return fmt.Errorf("%s is %v, not %v", what, got, wanted)
	}
	return nil
}

// all is the first error.
func all(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}
