package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

const smiLog = `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
	<driver_version>580.159.04</driver_version>
	<gpu id="00000000:00:06.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<uuid>GPU-a</uuid>
		<minor_number>0</minor_number>
	</gpu>
	<gpu id="00000000:00:07.0">
		<uuid>GPU-b</uuid>
		<minor_number>3</minor_number>
	</gpu>
</nvidia_smi_log>`

func TestGPUsAreNamedByTheirUUIDAndHaveTheNodeOfTheirMinorNumber(t *testing.T) {
	devices, err := listedGPUs([]byte(smiLog))
	if err != nil {
		t.Fatal(err)
	}
	node := func(path string) cdiEdits { return cdiEdits{DeviceNodes: []cdiNode{{path}}} }
	expected := []cdiDevice{{"GPU-a", node("/dev/nvidia0")}, {"GPU-b", node("/dev/nvidia3")}}
	if !reflect.DeepEqual(devices, expected) {
		t.Errorf("%+v", devices)
	}
	if _, err := listedGPUs([]byte("<nvidia_smi_log></nvidia_smi_log>")); err == nil {
		t.Error("no GPU is an error")
	}
}

func TestEachNameOfALibraryIsMountedAsItsFile(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "libcuda.so.580")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"libcuda.so.1": "libcuda.so.580", "libcuda.so": "libcuda.so.1", "libcuda.so.9": "absent"} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	file, _ = filepath.EvalSymlinks(file)
	var names []string
	for _, mount := range mounts(folder, "libcuda.so*", "/to") {
		if mount.HostPath != file {
			t.Errorf("%+v", mount)
		}
		names = append(names, mount.ContainerPath)
	}
	if !reflect.DeepEqual(names, []string{"/to/libcuda.so", "/to/libcuda.so.1", "/to/libcuda.so.580"}) {
		t.Errorf("%v", names)
	}
}

func TestOnlySettingsOfCollectivesReachThePods(t *testing.T) {
	settings := collectiveSettings([]string{"PATH=/bin", "NVSHMEM_DISABLE_NVLS=1", "NCCL_NVLS_ENABLE=0", "MY_NCCL_=1"})
	if !reflect.DeepEqual(settings, []string{"NCCL_NVLS_ENABLE=0", "NVSHMEM_DISABLE_NVLS=1"}) {
		t.Errorf("%v", settings)
	}
}

func TestTheSpecificationIsAFileForTheContainerRuntime(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "cdi")
	if err := fakeSpec(2).write(folder); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "nvidia.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]any
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if read["kind"] != "nvidia.com/gpu" || len(read["devices"].([]any)) != 2 {
		t.Errorf("%s", text)
	}
}
