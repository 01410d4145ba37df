package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// fakeDevices advertises devices that do not exist, so that the real scheduler and kubelet hand them out.
type fakeDevices struct {
	plugin.UnimplementedDevicePluginServer
	devices []*plugin.Device
}

func (f *fakeDevices) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (f *fakeDevices) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&plugin.ListAndWatchResponse{Devices: f.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate names the devices as NVIDIA's own plugin does, and mounts nothing.
func (f *fakeDevices) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

// runDevicePlugin serves COUNT devices of RESOURCE from the kubelet's plugin folder DIR for as long as it lives.
func runDevicePlugin() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: device-plugin DIR RESOURCE COUNT")
		os.Exit(2)
	}
	dir, resource := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	if err != nil || count < 0 {
		log.Fatalf("COUNT: %q is not a number of devices", os.Args[3])
	}
	devices := make([]*plugin.Device, count)
	for i := range devices {
		devices[i] = &plugin.Device{ID: fmt.Sprintf("fake-%d", i), Health: plugin.Healthy}
	}
	// The folder appears once the kubelet runs, and is emptied whenever it starts anew.
	for {
		if err := serveDevices(dir, resource, devices); err != nil {
			log.Print(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// serveDevices serves until the kubelet has been restarted; it always returns why it ended.
func serveDevices(dir, resource string, devices []*plugin.Device) error {
	socket := filepath.Join(dir, strings.ReplaceAll(resource, "/", "_")+".sock")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	plugin.RegisterDevicePluginServer(server, &fakeDevices{devices: devices})
	go server.Serve(listener) //nolint:errcheck // ends with Stop
	defer server.Stop()

	if err := register(filepath.Join(dir, "kubelet.sock"), filepath.Base(socket), resource); err != nil {
		return err
	}
	log.Printf("registered %d of %s", len(devices), resource)
	for {
		if _, err := os.Stat(socket); err != nil {
			return fmt.Errorf("the kubelet was restarted: %w", err)
		}
		time.Sleep(time.Second)
	}
}

// register tells the kubelet which socket of its plugin folder serves the resource.
func register(kubelet, endpoint, resource string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = plugin.NewRegistrationClient(connection).Register(ctx, &plugin.RegisterRequest{
		Version:      plugin.Version,
		Endpoint:     endpoint,
		ResourceName: resource,
		Options:      &plugin.DevicePluginOptions{},
	})
	return err
}
