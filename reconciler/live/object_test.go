// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/lockstep-dev/lockstep/payload"
)

const ours = ManagerPrefix + "clusterrelease/x"

func managed(manager, operation, subresource, fields string, at time.Time) metav1.ManagedFieldsEntry {
	f := &metav1.FieldsV1{}
	f.SetRawString(fields)
	stamp := metav1.NewTime(at)
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationType(operation), Subresource: subresource,
		APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: f, Time: &stamp,
	}
}

func sample() *metav1.PartialObjectMetadata {
	at := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "web", Name: "api", UID: "u", ResourceVersion: "7", Generation: 2,
		Labels: map[string]string{"ours": "1", "theirs": "1"}, Annotations: map[string]string{"note": "x"},
		ManagedFields: []metav1.ManagedFieldsEntry{
			managed(ours, "Apply", "", `{"f:data":{"f:a":{}},"f:metadata":{"f:labels":{"f:ours":{}}}}`, at),
			managed("kubectl-edit", "Update", "", `{"f:data":{"f:b":{}}}`, at),
			managed("kcm", "Update", "status", `{"f:status":{}}`, at),
		},
	}}
}

// differs returns the names of the digests that differ.
func differs(a, b *Object) string {
	var out []string
	x, _ := a.OwnFieldsOf(ours)
	y, _ := b.OwnFieldsOf(ours)
	for name, same := range map[string]bool{
		"entry": x.Entry == y.Entry, "values": x.Values == y.Values,
		"status": a.Status == b.Status, "others": a.OtherManagers == b.OtherManagers,
	} {
		if !same {
			out = append(out, name)
		}
	}
	if len(out) > 1 {
		return "several: " + strings.Join(out, " ")
	}
	return strings.Join(out, "")
}

func TestEachDigestCoversItsFields(t *testing.T) {
	later := metav1.NewTime(time.Date(2026, 11, 30, 1, 2, 4, 0, time.UTC))
	for name, tc := range map[string]struct {
		change func(*metav1.PartialObjectMetadata)
		want   string
	}{
		"nothing":                   {func(*metav1.PartialObjectMetadata) {}, ""},
		"only the resource version": {func(o *metav1.PartialObjectMetadata) { o.ResourceVersion = "8" }, ""},
		"our fields": {func(o *metav1.PartialObjectMetadata) {
			o.ManagedFields[0].FieldsV1.SetRawString(`{"f:metadata":{"f:labels":{"f:ours":{}}}}`)
		}, "entry"},
		"our entry's time":                 {func(o *metav1.PartialObjectMetadata) { o.ManagedFields[0].Time = &later }, "entry"},
		"our entry's version":              {func(o *metav1.PartialObjectMetadata) { o.ManagedFields[0].APIVersion = "v2" }, "entry"},
		"another manager's fields":         {func(o *metav1.PartialObjectMetadata) { o.ManagedFields[1].Time = &later }, "others"},
		"a status write":                   {func(o *metav1.PartialObjectMetadata) { o.ManagedFields[2].Time = &later }, "status"},
		"a label of another manager":       {func(o *metav1.PartialObjectMetadata) { o.Labels["theirs"] = "2" }, "others"},
		"an annotation of another manager": {func(o *metav1.PartialObjectMetadata) { o.Annotations["note"] = "y" }, "others"},
		"a finalizer":                      {func(o *metav1.PartialObjectMetadata) { o.Finalizers = []string{"x"} }, "others"},
		"an owner reference":               {func(o *metav1.PartialObjectMetadata) { o.OwnerReferences = []metav1.OwnerReference{{UID: "p"}} }, "others"},
		"the value of a label of ours":     {func(o *metav1.PartialObjectMetadata) { o.Labels["ours"] = "2" }, "several"},
	} {
		t.Run(name, func(t *testing.T) {
			o := sample()
			tc.change(o)
			if got := differs(Summarize(sample()), Summarize(o)); got != tc.want && !strings.HasPrefix(got, tc.want+": ") {
				t.Errorf("differs: %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSummaryContainsTheManagers(t *testing.T) {
	o := Summarize(sample())
	want := []Manager{{ours, "Apply", ""}, {"kubectl-edit", "Update", ""}, {"kcm", "Update", "status"}}
	if diff := cmp.Diff(want, o.Managers()); diff != "" {
		t.Errorf("managers (-want +got):\n%s", diff)
	}
	if len((&Object{}).Managers()) != 0 || len((&Object{}).Finalizers()) != 0 {
		t.Error("an empty object has managers or finalizers")
	}
}

func TestInvalidManagedFieldsAreSummarized(t *testing.T) {
	o := sample()
	o.ManagedFields[0].FieldsV1.SetRawString(`{"f:metadata": nonsense`)
	o.ManagedFields[1].FieldsV1 = nil
	o.ManagedFields[2].Time = nil
	if differs(Summarize(sample()), Summarize(o)) == "" {
		t.Error("no digest differs")
	}
}

func TestDigestRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want Hash
		copy(want[:], rapid.SliceOfN(rapid.Byte(), HashSize, HashSize).Draw(t, "bytes"))
		got, err := ParseHash(want.String())
		if err != nil || got != want {
			t.Fatalf("ParseDigest(%q) = %v, %v", want.String(), got, err)
		}
	})
	for _, bad := range []string{"x", "!!!!", strings.Repeat("A", 17)} {
		if _, err := ParseHash(bad); err == nil {
			t.Errorf("ParseDigest(%q) succeeds", bad)
		}
	}
}

// A full informer caches 9 to 33 kB per Deployment.
func TestAMetadataObjectTakesLessThanAKilobyte(t *testing.T) {
	const n = 5000
	k := newKind(schema.GroupKind{Kind: "ConfigMap"}, "v1", newNotifier())
	r := &reflector{kind: k, session: k.nextSession(), cache: &Cache{}}
	fields := `{"f:data":{` + strings.Repeat(`"f:key":{},`, 100) + `"f:last":{}}}`
	before := heap()
	for i := range n {
		o := sample()
		o.Name = fmt.Sprintf("a-name-of-usual-length-%d", i)
		o.UID = types.UID(fmt.Sprintf("2f0c8a2e-4d0e-4f0e-9f6e-%012d", i))
		o.ManagedFields[1].FieldsV1.SetRawString(fields)
		if err := r.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	per := (heap() - before) / n
	t.Logf("%d bytes per object", per)
	if per > 1000 {
		t.Errorf("%d bytes per object, want at most 1000", per)
	}
	runtime.KeepAlive(k)
}

func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestNeedsBody(t *testing.T) {
	for name, tc := range map[string]struct {
		m    payload.Manifest
		want bool
	}{
		"a Deployment":                         {kindOf("apps", "Deployment"), true},
		"a ConfigMap":                          {kindOf("", "ConfigMap"), false},
		"a ClusterRole":                        {kindOf("rbac.authorization.k8s.io", "ClusterRole"), false},
		"a custom resource":                    {kindOf("example.com", "Widget"), true},
		"a Gateway":                            {kindOf("gateway.networking.x-k8s.io", "Gateway"), true},
		"a NodeOS":                             {kindOf("lockstep.dev", "NodeOS"), true},
		"a CustomResourceDefinition":           {kindOf("apiextensions.k8s.io", "CustomResourceDefinition"), true},
		"a ConfigMap with a health expression": {payload.Manifest{ID: payload.ObjectID{Kind: "ConfigMap"}, Health: "true"}, true},
	} {
		if got := NeedsBody(&tc.m); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

func kindOf(group, kind string) payload.Manifest {
	return payload.Manifest{GVK: schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind}, ID: payload.ObjectID{Group: group, Kind: kind}}
}

// The server orders list items by value and JSON decoders by text. An object has
// the same digests on each way.
func TestDigestsDoNotDependOnTheEncoding(t *testing.T) {
	element := rapid.OneOf(
		rapid.Map(rapid.StringMatching(`[a-z<&é ]{1,3}`), func(name string) fieldpath.PathElement { return fieldpath.PathElement{FieldName: &name} }),
		rapid.Map(rapid.IntRange(1, 20000), func(port int) fieldpath.PathElement {
			return fieldpath.PathElement{Key: &value.FieldList{
				{Name: "containerPort", Value: value.NewValueInterface(int64(port))}, {Name: "protocol", Value: value.NewValueInterface("TCP")},
			}}
		}),
		rapid.Map(rapid.StringMatching(`[a-z]{1,3}`), func(v string) fieldpath.PathElement {
			of := value.NewValueInterface(v)
			return fieldpath.PathElement{Value: &of}
		}),
	)
	rapid.Check(t, func(t *rapid.T) {
		set := fieldpath.NewSet()
		for _, path := range rapid.SliceOfN(rapid.SliceOfN(element, 1, 3), 1, 12).Draw(t, "paths") {
			set.Insert(path)
		}
		sent, err := set.ToJSON()
		if err != nil {
			t.Fatal(err)
		}
		var decoded map[string]any
		if err := json.Unmarshal(sent, &decoded); err != nil {
			t.Fatal(err)
		}
		reordered, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		digests := func(fields []byte) *Object {
			o := sample()
			for i := range o.ManagedFields {
				o.ManagedFields[i].FieldsV1.SetRawBytes(fields)
			}
			return Summarize(o)
		}
		if got := differs(digests(sent), digests(reordered)); got != "" {
			t.Fatalf("%s and %s differ: %s", sent, reordered, got)
		}
	})
}

// BenchmarkSummarize measures a Deployment with two ports and three managers.
func BenchmarkSummarize(b *testing.B) {
	at := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	const template = `{"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:containers":{` +
		`"k:{\"name\":\"api\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}},` +
		`"k:{\"containerPort\":443,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}}}`
	o := sample()
	o.ManagedFields = []metav1.ManagedFieldsEntry{
		managed(ours, "Apply", "", template, at),
		managed("kcm", "Update", "status", `{"f:status":{"f:conditions":{".":{},"k:{\"type\":\"Available\"}":{".":{},"f:status":{},"f:type":{}}},"f:replicas":{}}}`, at),
	}
	b.ReportAllocs()
	for b.Loop() {
		Summarize(o)
	}
}

func FuzzSummarize(f *testing.F) {
	f.Add(`{"f:metadata":{"f:labels":{"f:ours":{}}}}`, "status", "a\nb")
	f.Add(`{"f:metadata":{"f:labels":[]}}`, "", "\x00")
	f.Add(``, "scale", "")
	f.Fuzz(func(t *testing.T, fields, subresource, manager string) {
		o := sample()
		o.ManagedFields = append(o.ManagedFields, managed(ours, "Apply", subresource, fields, time.Time{}), managed(manager, "Update", subresource, fields, time.Time{}))
		a, b := Summarize(o), Summarize(o)
		if differs(a, b) != "" {
			t.Fatal("two summaries of one object differ")
		}
		_ = a.Managers()
	})
}

func TestFieldsOfSeveralManagersAreShared(t *testing.T) {
	raw := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
		f := &metav1.FieldsV1{}
		f.SetRawBytes([]byte(fields))
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationApply, Subresource: subresource, FieldsType: "FieldsV1", FieldsV1: f}
	}
	ours := raw(ManagerPrefix+"clusterrelease/a", "", `{"f:data":{"f:a":{},"f:b":{}}}`)
	for name, tc := range map[string]struct {
		other metav1.ManagedFieldsEntry
		want  bool
	}{
		"a field in common":             {raw("other", "", `{"f:data":{"f:b":{}}}`), true},
		"another field of the same map": {raw("other", "", `{"f:data":{"f:c":{}}}`), false},
		"a field of the status":         {raw("other", "status", `{"f:data":{"f:b":{}}}`), false},
		"an invalid entry":              {raw("other", "", `{`), true},
	} {
		t.Run(name, func(t *testing.T) {
			meta := &metav1.ObjectMeta{Name: "x", ManagedFields: []metav1.ManagedFieldsEntry{ours, tc.other}}
			if got := Summarize(meta).Shared; got != tc.want {
				t.Errorf("Shared = %t, want %t", got, tc.want)
			}
			meta.ManagedFields = meta.ManagedFields[1:]
			if Summarize(meta).Shared {
				t.Error("shared without a field of ours")
			}
		})
	}
}
