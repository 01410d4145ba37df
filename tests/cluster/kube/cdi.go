package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// The kind of the devices that a container runtime injects (Container Device Interface), as NVIDIA's own tools name it.
const cdiKind = "nvidia.com/gpu"

// Where containers find the libraries and programs of the driver.
const (
	driverLibraries = "/usr/local/nvidia/lib64"
	driverPrograms  = "/usr/local/nvidia/bin"
)

// cdiSpec is a file of the Container Device Interface: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
type cdiSpec struct {
	Version        string      `json:"cdiVersion"`
	Kind           string      `json:"kind"`
	Devices        []cdiDevice `json:"devices"`
	ContainerEdits cdiEdits    `json:"containerEdits"`
}

type cdiDevice struct {
	Name           string   `json:"name"`
	ContainerEdits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	Env         []string   `json:"env,omitempty"`
	DeviceNodes []cdiNode  `json:"deviceNodes,omitempty"`
	Mounts      []cdiMount `json:"mounts,omitempty"`
}

type cdiNode struct {
	Path string `json:"path"`
}

type cdiMount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options"`
}

// fakeSpec is the specification of devices that do not exist: a container sees which ones it has been given.
func fakeSpec(count int) cdiSpec {
	spec := cdiSpec{Version: "0.5.0", Kind: cdiKind}
	for i := range count {
		name := fmt.Sprintf("fake-%d", i)
		edits := cdiEdits{Env: []string{"PAWL_TEST_CDI_DEVICE=" + name}}
		spec.Devices = append(spec.Devices, cdiDevice{Name: name, ContainerEdits: edits})
	}
	return spec
}

// realSpec is the specification of the GPUs of this machine: device nodes, and the driver's libraries. The libraries of CUDA in
// the folders are mounted beside them, for images that do not contain them.
func realSpec(folders []string) (cdiSpec, error) {
	driver, err := driverFolder()
	if err != nil {
		return cdiSpec{}, err
	}
	smi := "nvidia-smi"
	if _, err := exec.LookPath(smi); err != nil {
		smi = filepath.Join(driverPrograms, smi)
	}
	query := exec.Command(smi, "-q", "-x")
	query.Env = append(os.Environ(), "LD_LIBRARY_PATH="+driver+":"+os.Getenv("LD_LIBRARY_PATH"))
	log, err := query.Output()
	if err != nil {
		return cdiSpec{}, fmt.Errorf("%s -q -x: %w: is the driver loaded?", smi, err)
	}
	devices, err := listedGPUs(log)
	if err != nil {
		return cdiSpec{}, fmt.Errorf("%s -q -x: %w", smi, err)
	}
	common := cdiEdits{Env: append([]string{"LD_LIBRARY_PATH=" + driverLibraries}, collectiveSettings(os.Environ())...)}
	for _, path := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} {
		if _, err := os.Stat(path); err == nil {
			common.DeviceNodes = append(common.DeviceNodes, cdiNode{path})
		}
	}
	for _, pattern := range []string{"libcuda.so*", "libcudadebugger.so*", "libnvidia-*.so*"} {
		common.Mounts = append(common.Mounts, mounts(driver, pattern, driverLibraries)...)
	}
	if path, err := exec.LookPath(smi); err == nil {
		common.Mounts = append(common.Mounts, mounts(filepath.Dir(path), "nvidia-smi", driverPrograms)...)
	}
	for _, folder := range folders {
		common.Mounts = append(common.Mounts, mounts(folder, "*.so*", driverLibraries)...)
	}
	return cdiSpec{Version: "0.5.0", Kind: cdiKind, Devices: devices, ContainerEdits: common}, nil
}

// driverFolder is the folder with libcuda.so.1 that belongs to the driver of this machine.
func driverFolder() (string, error) {
	folders := []string{driverLibraries, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, "libcuda.so.1")); err == nil {
			return folder, nil
		}
	}
	return "", fmt.Errorf("libcuda.so.1 is in none of %v: install NVIDIA's driver", folders)
}

// listedGPUs are the devices in the output of nvidia-smi -q -x, by UUID.
func listedGPUs(log []byte) ([]cdiDevice, error) {
	var parsed struct {
		GPUs []struct {
			UUID  string `xml:"uuid"`
			Minor string `xml:"minor_number"`
		} `xml:"gpu"`
	}
	if err := xml.Unmarshal(log, &parsed); err != nil {
		return nil, err
	}
	var devices []cdiDevice
	for _, gpu := range parsed.GPUs {
		uuid, minor := strings.TrimSpace(gpu.UUID), strings.TrimSpace(gpu.Minor)
		if uuid == "" || minor == "" {
			return nil, fmt.Errorf("a GPU has no UUID or no minor number: %+v", gpu)
		}
		edits := cdiEdits{DeviceNodes: []cdiNode{{"/dev/nvidia" + minor}}}
		devices = append(devices, cdiDevice{Name: uuid, ContainerEdits: edits})
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("there is no GPU")
	}
	return devices, nil
}

// mounts are the files of a folder that match, each under its own name in another folder: a link is mounted as its target.
func mounts(folder, pattern, to string) []cdiMount {
	files, _ := filepath.Glob(filepath.Join(folder, pattern)) //nolint:errcheck // the patterns are well-formed
	var found []cdiMount
	for _, file := range files {
		target, err := filepath.EvalSymlinks(file)
		if err != nil {
			continue // a dangling link
		}
		found = append(found, cdiMount{target, filepath.Join(to, filepath.Base(file)), []string{"ro", "nosuid", "nodev", "bind"}})
	}
	return found
}

// collectiveSettings are the variables by which the administrator of the machine configures collectives: they apply to its pods.
func collectiveSettings(environment []string) []string {
	prefixes := []string{"NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_"}
	settings := slices.DeleteFunc(slices.Clone(environment), func(variable string) bool {
		return !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(variable, prefix) })
	})
	slices.Sort(settings)
	return settings
}

// write puts the specification into a folder that the container runtime watches.
func (s cdiSpec) write(folder string) error {
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	// The name that NVIDIA's tools use: a file of theirs is replaced, for two files must not define one device.
	path := filepath.Join(folder, "nvidia.json")
	if err := os.WriteFile(path+".part", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}
