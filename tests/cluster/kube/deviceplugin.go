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

// devicePlugin advertises the devices of a CDI specification, so that scheduler and kubelet hand them out: the GPUs of this
// machine, or devices that do not exist.
type devicePlugin struct {
	plugin.UnimplementedDevicePluginServer
	devices []*plugin.Device
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&plugin.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate names the devices as NVIDIA's own plugin does; the container runtime does what the specification says about them.
func (p *devicePlugin) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		allocated := &plugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		}
		for _, id := range container.DevicesIds {
			allocated.CdiDevices = append(allocated.CdiDevices, &plugin.CDIDevice{Name: cdiKind + "=" + id})
		}
		response.ContainerResponses = append(response.ContainerResponses, allocated)
	}
	return response, nil
}

// runDevicePlugin serves devices of RESOURCE from the kubelet's plugin folder DIR for as long as it lives: COUNT that do not
// exist, or, with 'real', the GPUs of this machine with the CUDA libraries in the folders LIBRARIES. What they are for the
// container runtime is written into its folder CDI.
func runDevicePlugin() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: device-plugin DIR RESOURCE COUNT|real CDI [LIBRARIES...]")
		os.Exit(2)
	}
	dir, resource := os.Args[1], os.Args[2]
	spec, err := specOf(os.Args[3], os.Args[5:])
	if err == nil {
		err = spec.write(os.Args[4])
	}
	if err != nil {
		log.Fatal(err)
	}
	devices := make([]*plugin.Device, len(spec.Devices))
	for i, device := range spec.Devices {
		devices[i] = &plugin.Device{ID: device.Name, Health: plugin.Healthy}
	}
	// The folder appears once the kubelet runs, and is emptied whenever it starts anew.
	for {
		if err := serveDevices(dir, resource, devices); err != nil {
			log.Print(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func specOf(which string, libraries []string) (cdiSpec, error) {
	if which == "real" {
		return realSpec(libraries)
	}
	count, err := strconv.Atoi(which)
	if err != nil || count < 0 {
		return cdiSpec{}, fmt.Errorf("COUNT: %q is neither a number of devices nor 'real'", which)
	}
	return fakeSpec(count), nil
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
	plugin.RegisterDevicePluginServer(server, &devicePlugin{devices: devices})
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
