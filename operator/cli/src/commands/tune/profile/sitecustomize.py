"""Looks at what the main thread of a script does, while `pawl tune` observes it.

It lies in a directory of its own, the first of PYTHONPATH, so that Python imports it before it runs the script, which runs as it is.
Every few milliseconds a thread looks at the Python frames of the main thread. The file that PAWL_TUNE_PROFILE names gets a line of
JSON for each tenth of a second.
"""

import os
import sys

PERIOD = 0.005
FLUSH = 0.1
# When PyTorch's objects are looked at, in seconds after the first backward pass or step of an optimizer.
LOOKS = (0.0, 1.0, 4.0, 15.0)
MOST_FRAMES = 300

LOADER = {"__next__", "__iter__"}
OPTIMIZER = {"step", "zero_grad", "wrapper", "profile_hook_step"}
DATA = {"get_batch", "next_batch", "get_next_batch", "load_batch", "fetch_batch", "sample_batch", "collate", "collate_fn"}
EVALUATION = {"evaluate", "evaluation_loop", "estimate_loss", "validation_epoch", "eval_epoch"}
# Names that libraries use for other things.
OWN_EVALUATION = {"test", "validate", "validation", "eval_model", "evaluate_model", "val_epoch", "run_validation"}
CHECKPOINT = {"save_checkpoint", "save_pretrained", "save_model", "save_state"}
STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# Lines that wait for the results of a GPU.
WAITS = (".item()", ".cpu()", ".tolist()", ".numpy()", "synchronize(")


def is_of_script(code):
    """Whether a function is of the script's own files."""
    path = code.co_filename
    return "-packages" not in path and not path.startswith((STANDARD_LIBRARY, "<"))


def label(code):
    """What the function of a frame does; None: what its caller does."""
    path, name = code.co_filename.replace(os.sep, "/"), code.co_name
    is_own = is_of_script(code)
    # Not the code of the module, which is run by its import.
    if path.endswith(("/torch/utils/data/dataloader.py", "/accelerate/data_loader.py")) and name in LOADER:
        return "data"
    if "/torch/optim/" in path and name in OPTIMIZER:
        return "optimizer"
    if path.endswith(("/torch/_tensor.py", "/torch/autograd/__init__.py")) and name == "backward":
        return "backward"
    if path.endswith("/torch/nn/modules/module.py") and name in ("__call__", "_call_impl", "_wrapped_call_impl"):
        return "forward"
    if (path.endswith("/torch/serialization.py") and name in ("save", "load")) or name in CHECKPOINT:
        return "checkpoint"
    if name in EVALUATION or (is_own and name in OWN_EVALUATION) or path.endswith("/loops/evaluation_loop.py"):
        return "evaluation"
    return "data" if is_own and name in DATA else None


class Profile:
    """Sums of the time of the main thread by what it does."""

    def __init__(self, out, main, time, dumps, line, objects):
        self.out, self.main = out, main
        # Nothing is imported by the thread: the main thread may hold the lock of an import.
        self.clock, self.wall, self.sleep = time.perf_counter, time.time, time.sleep
        self.dumps, self.line, self.objects = dumps, line, objects
        self.labels = {}
        self.seconds, self.places, self.samples = {}, {}, 0
        self.trained = None
        self.looks = list(LOOKS)

    def run(self):
        last = begun = self.clock()
        random = 1
        while True:
            # At equal distances, steps that take a multiple of them would be looked at in one place only. The module `random` is the
            # script's.
            random = (random * 1103515245 + 12345) % (1 << 31)
            self.sleep(PERIOD * (0.5 + random / (1 << 31)))
            frame = sys._current_frames().get(self.main)
            now = self.clock()
            if frame is None:
                return
            what, place = self.activity(frame)
            # Its locals would live for longer.
            del frame
            self.seconds[what] = self.seconds.get(what, 0.0) + now - last
            self.places[place] = self.places.get(place, 0.0) + now - last
            self.samples += 1
            last = now
            if now - begun >= FLUSH:
                self.write({"at": self.wall(), "seconds": self.seconds, "places": self.places, "samples": self.samples})
                self.seconds, self.places, self.samples, begun = {}, {}, 0, now
            if self.trained is None and what in ("backward", "optimizer"):
                self.trained = now
            if self.looks and self.trained is not None and now - self.trained >= self.looks[0]:
                del self.looks[0]
                found = torch_objects(self.objects())
                if found is not None:
                    self.write({"torch": found})
                last = begun = self.clock()

    def activity(self, frame):
        """What the outermost known function of a stack does, and the innermost line of the script's own files."""
        inner, what, place = frame, None, None
        for _ in range(MOST_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            if code not in self.labels:
                self.labels[code] = label(code)
            found = self.labels[code]
            # An optimizer may call the function that computes the gradients.
            if found is not None and not (found == "optimizer" and what in ("forward", "backward")):
                what = found
            if place is None and is_of_script(code):
                place = "%s:%d" % (os.path.basename(code.co_filename), frame.f_lineno or code.co_firstlineno)
            frame = frame.f_back
        if what in (None, "forward", "backward", "optimizer") and is_cuda_used():
            text = self.line(inner.f_code.co_filename, inner.f_lineno or 0)
            what = "device" if any(word in text for word in WAITS) else what
        return what or "other", place or "?"

    def write(self, message):
        os.write(self.out, (self.dumps(message) + "\n").encode())


def is_cuda_used():
    cuda = sys.modules.get("torch.cuda")
    return getattr(cuda, "_initialized", False) is True


def torch_objects(things):
    """The loaders and optimizers of PyTorch, and how it computes; None where it cannot be seen."""
    torch = sys.modules.get("torch")
    try:
        # A loader may live no longer than the loop over it begins.
        loader, iteration = torch.utils.data.DataLoader, torch.utils.data.dataloader._BaseDataLoaderIter
        optimizer, autocast = torch.optim.Optimizer, torch.autocast
        kinds = {}
        found = {"loaders": [], "optimizers": [], "autocast": None, "compiled": False}
        for thing in things:
            kind = type(thing)
            if kind not in kinds:
                kinds[kind] = [base for base in (loader, iteration, optimizer, autocast) if base in kind.__mro__][:1]
            if not kinds[kind]:
                continue
            if kinds[kind][0] is loader:
                found["loaders"].append({"workers": thing.num_workers})
            elif kinds[kind][0] is iteration:
                found["loaders"].append({"workers": thing._num_workers})
            elif kinds[kind][0] is optimizer:
                groups = thing.param_groups
                parameters = [parameter for group in groups for parameter in group["params"]]
                found["optimizers"].append({
                    "name": kind.__name__,
                    "fused": bool(groups and groups[0].get("fused")),
                    "parameters": sum(parameter.numel() for parameter in parameters),
                    "dtypes": sorted({str(parameter.dtype).replace("torch.", "") for parameter in parameters}),
                })
            elif thing.__dict__.get("_enabled"):
                found["autocast"] = str(thing.__dict__.get("fast_dtype")).replace("torch.", "")
        found["version"] = str(torch.__version__)
        found["compiled"] = "torch._dynamo.eval_frame" in sys.modules and any(
            kind.__name__ == "OptimizedModule" for kind in kinds
        )
        if is_cuda_used():
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            found["memory"] = {"peak": torch.cuda.max_memory_allocated(), "total": total}
        return found
    except Exception:
        return None


def runs(script):
    """Whether this process is that of the script, rather than a launcher that starts it, and not one of its later ranks."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[1:-1]]
    except OSError:
        return True
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-m" and words:
            place = words[0].replace(".", "/")
            return script.endswith(("/" + place + ".py", "/" + place + "/__main__.py")) and is_first_rank()
        if option in ("-W", "-X") and words:
            words.pop(0)
    return bool(words) and os.path.realpath(words[0]) == script and is_first_rank()


def is_first_rank():
    return os.environ.get("LOCAL_RANK", "0") == "0"


def withdraw(is_script):
    """Leaves the search path as it was, for child processes once it is the script, and runs the sitecustomize that would have run."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    first, more, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if is_script and os.path.abspath(first) == here:
        if more:
            os.environ["PYTHONPATH"] = rest
        else:
            del os.environ["PYTHONPATH"]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


def follow(path):
    """Starts the thread."""
    try:
        import _thread
        import gc
        import json
        import linecache
        import time

        out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        profile = Profile(out, _thread.get_ident(), time, json.dumps, linecache.getline, gc.get_objects)
        # Not of `threading`: the script would find it among its own.
        _thread.start_new_thread(profile.run, ())
    except Exception:
        # Without a profile, the script is observed from outside.
        pass


script = os.environ.get("PAWL_TUNE_SCRIPT")
is_script = script is None or runs(script)
file = os.environ.get("PAWL_TUNE_PROFILE")
withdraw(is_script)
if is_script:
    os.environ.pop("PAWL_TUNE_PROFILE", None)
    os.environ.pop("PAWL_TUNE_SCRIPT", None)
    if file:
        follow(file)
