// An orchestrator that is not Kubernetes: it drives a volume through its whole life by CSI calls alone, each of them
// twice, as an orchestrator does that lost the first answer. It knows nothing of the driver but its socket.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const mib = 1 << 20

var mount = &csi.VolumeCapability_MountVolume{}
var access = &csi.VolumeCapability{
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	AccessType: &csi.VolumeCapability_Mount{Mount: mount},
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func expect(holds bool, format string, values ...any) {
	if !holds {
		log.Fatalf(format, values...)
	}
}

// twice makes a call two times; both have to succeed. The second answer is returned.
func twice[Request, Answer any](ctx context.Context, call func(context.Context, Request, ...grpc.CallOption) (Answer, error), request Request) Answer {
	_, err := call(ctx, request)
	check(err)
	answer, err := call(ctx, request)
	check(err)
	fmt.Printf("%T\n", request)
	return answer
}

type orchestrator struct {
	ctx        context.Context
	controller csi.ControllerClient
	node       csi.NodeClient
	folder     string
}

func (o orchestrator) create(name string, source *csi.VolumeContentSource) *csi.Volume {
	request := &csi.CreateVolumeRequest{
		Name:                name,
		CapacityRange:       &csi.CapacityRange{RequiredBytes: 320 * mib},
		VolumeCapabilities:  []*csi.VolumeCapability{access},
		VolumeContentSource: source,
	}
	return twice(o.ctx, o.controller.CreateVolume, request).GetVolume()
}

func (o orchestrator) staging(v *csi.Volume) string {
	return filepath.Join(o.folder, v.GetVolumeId(), "staging")
}
func (o orchestrator) target(v *csi.Volume) string {
	return filepath.Join(o.folder, v.GetVolumeId(), "target")
}

func (o orchestrator) mount(v *csi.Volume) {
	check(os.MkdirAll(o.staging(v), 0o700))
	twice(o.ctx, o.node.NodeStageVolume, &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: o.staging(v), VolumeCapability: access, VolumeContext: v.GetVolumeContext(),
	})
	twice(o.ctx, o.node.NodePublishVolume, &csi.NodePublishVolumeRequest{
		VolumeId: v.GetVolumeId(), StagingTargetPath: o.staging(v), TargetPath: o.target(v), VolumeCapability: access,
		VolumeContext: v.GetVolumeContext(),
	})
}

func (o orchestrator) unmount(v *csi.Volume) {
	twice(o.ctx, o.node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: o.target(v)})
	twice(o.ctx, o.node.NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: o.staging(v)})
}

func (o orchestrator) size(v *csi.Volume) int64 {
	request := &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: o.target(v)}
	for _, usage := range twice(o.ctx, o.node.NodeGetVolumeStats, request).GetUsage() {
		if usage.GetUnit() == csi.VolumeUsage_BYTES {
			return usage.GetTotal()
		}
	}
	log.Fatal("NodeGetVolumeStats reports no bytes")
	return 0
}

func (o orchestrator) grow(v *csi.Volume) {
	before, wanted := o.size(v), &csi.CapacityRange{RequiredBytes: 640 * mib}
	grown := twice(o.ctx, o.controller.ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{
		VolumeId: v.GetVolumeId(), CapacityRange: wanted, VolumeCapability: access,
	})
	if grown.GetNodeExpansionRequired() {
		twice(o.ctx, o.node.NodeExpandVolume, &csi.NodeExpandVolumeRequest{
			VolumeId: v.GetVolumeId(), VolumePath: o.target(v), StagingTargetPath: o.staging(v), CapacityRange: wanted,
			VolumeCapability: access,
		})
	}
	expect(o.size(v) > before+300*mib, "%d bytes have grown to %d only", before, o.size(v))
}

func (o orchestrator) free() int64 {
	request := &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{access}}
	return twice(o.ctx, o.controller.GetCapacity, request).GetAvailableCapacity()
}

func main() {
	socket := flag.String("endpoint", "", "the driver's socket")
	folder := flag.String("folder", "", "where volumes are mounted")
	flag.StringVar(&mount.FsType, "fstype", "", "the volumes' file system")
	flag.Parse()
	connection, err := grpc.NewClient("unix:"+*socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ready := twice(ctx, csi.NewIdentityClient(connection).Probe, &csi.ProbeRequest{}).GetReady()
	expect(ready == nil || ready.GetValue(), "the driver is not ready")
	o := orchestrator{ctx, csi.NewControllerClient(connection), csi.NewNodeClient(connection), *folder}
	node := twice(ctx, o.node.NodeGetInfo, &csi.NodeGetInfoRequest{})
	whole := o.free()

	volume := o.create("first", nil)
	topology := volume.GetAccessibleTopology()
	expect(len(topology) == 1 && fmt.Sprint(topology[0].GetSegments()) == fmt.Sprint(node.GetAccessibleTopology().GetSegments()),
		"a volume of this node is accessible from %v", topology)
	expect(o.free() <= whole-320*mib, "%d bytes are free with a volume, %d were without", o.free(), whole)
	o.mount(volume)
	check(os.WriteFile(filepath.Join(o.target(volume), "file"), []byte("before"), 0o600))
	o.grow(volume)
	snapshot := twice(ctx, o.controller.CreateSnapshot, &csi.CreateSnapshotRequest{SourceVolumeId: volume.GetVolumeId(), Name: "s"}).GetSnapshot()
	expect(snapshot.GetReadyToUse(), "the snapshot is not ready")
	check(os.WriteFile(filepath.Join(o.target(volume), "file"), []byte("after"), 0o600))

	source := &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot.GetSnapshotId()}
	twice(ctx, o.controller.ListVolumes, &csi.ListVolumesRequest{})
	_, err = o.controller.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "huge", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 50}, VolumeCapabilities: []*csi.VolumeCapability{access}})
	expect(status.Code(err) == codes.ResourceExhausted || status.Code(err) == codes.OutOfRange, "a volume that does not fit: %v", err)
	larger := &csi.CreateVolumeRequest{Name: "restored", CapacityRange: &csi.CapacityRange{RequiredBytes: 640 * mib}, VolumeCapabilities: []*csi.VolumeCapability{access}, VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: source}}}
	restored := twice(ctx, o.controller.CreateVolume, larger).GetVolume()
	o.mount(restored)
	content, err := os.ReadFile(filepath.Join(o.target(restored), "file"))
	check(err)
	expect(string(content) == "before", "the restored volume has %q", content)

	for _, each := range []*csi.Volume{restored, volume} {
		o.unmount(each)
		_, err = os.Stat(o.target(each))
		expect(os.IsNotExist(err), "NodeUnpublishVolume has left %s", o.target(each))
		twice(ctx, o.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: each.GetVolumeId()})
	}
	twice(ctx, o.controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
	expect(o.free() == whole, "%d bytes are free afterwards, %d were before", o.free(), whole)
}
