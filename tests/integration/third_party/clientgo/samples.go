package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
)

// sample is an object in both encodings.
type sample struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	JSON       json.RawMessage `json:"json"`
	Protobuf   []byte          `json:"protobuf"`
}

// writeSamples reads the apiVersion and kind of samples, and writes for each some objects that are filled at random.
func writeSamples(in io.Reader, out io.Writer, some int, seed int64) error {
	random := rand.New(rand.NewSource(seed))
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	return eachSample(in, out, func(wanted sample) ([]sample, error) {
		kind := schema.FromAPIVersionAndKind(wanted.APIVersion, wanted.Kind)
		var made []sample
		for n := range some {
			object, err := scheme.Scheme.New(kind)
			if err != nil {
				return nil, err
			}
			fill(reflect.ValueOf(object).Elem(), random, n)
			object.GetObjectKind().SetGroupVersionKind(kind)
			one := sample{APIVersion: wanted.APIVersion, Kind: wanted.Kind}
			if one.JSON, err = json.Marshal(object); err != nil {
				return nil, err
			}
			if one.Protobuf, err = runtime.Encode(encoder, object); err != nil {
				return nil, err
			}
			made = append(made, one)
		}
		return made, nil
	})
}

// readSamples reads the protobuf of samples, and writes their JSON.
func readSamples(in io.Reader, out io.Writer) error {
	decoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	return eachSample(in, out, func(found sample) ([]sample, error) {
		object, kind, err := decoder.Decode(found.Protobuf, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", found.APIVersion, found.Kind, err)
		}
		object.GetObjectKind().SetGroupVersionKind(*kind)
		found.JSON, err = json.Marshal(object)
		return []sample{found}, err
	})
}

func eachSample(in io.Reader, out io.Writer, answer func(sample) ([]sample, error)) error {
	lines, encoder := bufio.NewScanner(in), json.NewEncoder(out)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var asked sample
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		answers, err := answer(asked)
		if err != nil {
			return err
		}
		for _, one := range answers {
			if err := encoder.Encode(one); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

var texts = []string{"", "a", "name-1", "text with \"quotes\" and é€😀", "line\nline"}
var amounts = []string{"0", "1", "100m", "1Gi", "1500M", "0.5", "12e6", "-3"}

// fill sets a value at random, or as a zero value; sparse (round 0) leaves all out.
func fill(value reflect.Value, random *rand.Rand, round int) {
	if !value.CanSet() {
		return
	}
	switch found := value.Addr().Interface().(type) {
	case *metav1.TypeMeta:
		return
	case *metav1.Time:
		*found = metav1.Time{Time: time.Unix(random.Int63n(4e9)-1e9, 0).UTC()}
		return
	case *metav1.MicroTime:
		*found = metav1.MicroTime{Time: time.UnixMicro(random.Int63n(4e15)).UTC()}
		return
	case *resource.Quantity:
		*found = resource.MustParse(amounts[random.Intn(len(amounts))])
		return
	case *intstr.IntOrString:
		*found = intstr.FromInt32(random.Int31())
		if random.Intn(2) == 0 {
			*found = intstr.FromString(texts[random.Intn(len(texts))])
		}
		return
	case *runtime.RawExtension:
		found.Raw = []byte(`{"a":[1,{"b":null}],"c":"é"}`)
		return
	case *metav1.FieldsV1:
		found.Raw = []byte(`{"f:metadata":{".":{}}}`)
		return
	}
	fillKind(value, random, round)
}

func fillKind(value reflect.Value, random *rand.Rand, round int) {
	some := random.Intn(4) * min(round, 1)
	switch value.Kind() {
	case reflect.Struct:
		for n := range value.NumField() {
			fill(value.Field(n), random, round)
		}
	case reflect.Pointer:
		if some > 0 {
			value.Set(reflect.New(value.Type().Elem()))
			fill(value.Elem(), random, round)
		}
	case reflect.Slice:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			value.SetBytes([]byte(texts[random.Intn(len(texts))]))
			return
		}
		for range some {
			item := reflect.New(value.Type().Elem()).Elem()
			fill(item, random, round)
			value.Set(reflect.Append(value, item))
		}
	case reflect.Map:
		if some > 0 {
			value.Set(reflect.MakeMap(value.Type()))
		}
		for n := range some {
			item := reflect.New(value.Type().Elem()).Elem()
			fill(item, random, round)
			value.SetMapIndex(reflect.ValueOf(fmt.Sprint("key-", n)).Convert(value.Type().Key()), item)
		}
	case reflect.String:
		value.SetString(texts[random.Intn(len(texts))])
	case reflect.Bool:
		value.SetBool(random.Intn(2) == 0)
	case reflect.Int32:
		value.SetInt([]int64{0, 1, -1, 1 << 30, -1<<31 + 1}[random.Intn(5)])
	case reflect.Int, reflect.Int64:
		value.SetInt([]int64{0, 1, -1, 1 << 40, -1<<63 + 1}[random.Intn(5)])
	default:
		panic(value.Type().String())
	}
}
