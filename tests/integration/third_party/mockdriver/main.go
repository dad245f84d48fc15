// Serves the CSI mock driver of Kubernetes' own end-to-end tests, which keeps its books but has no storage, with real
// folders behind its volumes: what it publishes is bind-mounted, what it deletes is removed. With -register it makes
// itself known to a kubelet, as node-driver-registrar does.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

type folders struct{ base string }

// call lets the mock driver answer, and does to the folders what it said.
func (f folders) call(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if unpublish, is := req.(*csi.NodeUnpublishVolumeRequest); is {
		_ = syscall.Unmount(unpublish.GetTargetPath(), 0)
		_ = os.Remove(unpublish.GetTargetPath())
	}
	answer, err := next(ctx, req)
	log.Printf("%s %v -> %v %v", info.FullMethod, req, answer, err)
	if err != nil {
		return answer, err
	}
	switch r := req.(type) {
	case *csi.NodePublishVolumeRequest:
		err = f.publish(r)
	case *csi.NodeUnpublishVolumeRequest:
		_ = os.RemoveAll(filepath.Join(f.base, "inline-"+r.GetVolumeId()))
	case *csi.DeleteVolumeRequest:
		err = os.RemoveAll(filepath.Join(f.base, r.GetVolumeId()))
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return answer, nil
}

func (f folders) publish(r *csi.NodePublishVolumeRequest) error {
	if r.GetVolumeCapability().GetBlock() != nil {
		return status.Error(codes.InvalidArgument, "folders only, no block devices")
	}
	name := r.GetVolumeId()
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
		name = "inline-" + name
	}
	source := filepath.Join(f.base, name)
	for _, folder := range []string{source, r.GetTargetPath()} {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
	}
	if sameFolder(source, r.GetTargetPath()) {
		return nil // a call repeated, as after a restart of the kubelet
	}
	return syscall.Mount(source, r.GetTargetPath(), "", syscall.MS_BIND, "")
}

func sameFolder(one, other string) bool {
	a, err := os.Stat(one)
	b, otherErr := os.Stat(other)
	return err == nil && otherErr == nil && os.SameFile(a, b)
}

// registrar answers the kubelet.
type registrar struct {
	registration.UnsafeRegistrationServer
	info registration.PluginInfo
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &r.info, nil
}

func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, outcome *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered=%t error=%q", outcome.PluginRegistered, outcome.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func register(socket, name, endpoint string) {
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &registrar{info: registration.PluginInfo{
		Type: registration.CSIPlugin, Name: name, Endpoint: endpoint, SupportedVersions: []string{"1.0.0"},
	}})
	go func() { log.Fatal(server.Serve(listen(socket))) }()
}

func listen(socket string) net.Listener {
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

func main() {
	endpoint := flag.String("endpoint", "", "path of the CSI socket")
	name := flag.String("drivername", "mock.example.org", "name of the driver")
	state := flag.String("statedir", "", "where volumes live")
	registry := flag.String("register", "", "path of the registration socket to make; none if left out")
	topology := flag.Bool("topology", true, "bind volumes to their place")
	flag.Parse()
	mock := service.New(service.Config{
		DriverName: *name, DisableAttach: true, EnableTopology: *topology, PermissiveTargetPath: true,
	})
	served := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock})
	if err := served.Start(listen(*endpoint), folders{*state}.call); err != nil {
		log.Fatal(err)
	}
	if *registry != "" {
		register(*registry, *name, *endpoint)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	served.Stop()
}
