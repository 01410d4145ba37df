// A C interface to cuDNN's attention, forward and backward, over the header-only cudnn-frontend. cuDNN itself is opened at run time.
// Every function returns 0, or leaves a message in `error` (`size` bytes).
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <unordered_map>

namespace fe = cudnn_frontend;
namespace cudnn_frontend {
void *cudnn_dlhandle = nullptr;
}

namespace {

enum Tensor { Q, K, V, O, STATS, GRAD, DQ, DK, DV, TENSORS };

int failed(char *error, size_t size, const std::string &what) {
    std::snprintf(error, size, "%s", what.c_str());
    return 1;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Must be kept like `Problem` of engine/src/cuda/cudnn.rs.
struct PawlAttention {
    int64_t batch, heads, groups, queries, keys, width;
    // Elements between neighbours along batch, head and row, of each tensor in the order of `Tensor`. Elements of a row lie side by side.
    int64_t strides[TENSORS][3];
    float scale;
    int32_t causal, half, backward, deterministic;
};

struct PawlPlan {
    fe::graph::Graph graph;
    int64_t workspace = 0;
};

// Opens cuDNN by `name`; gives its version (91900).
int pawl_cudnn_open(const char *name, int64_t *version, char *error, size_t size) {
    if (!fe::cudnn_dlhandle) fe::cudnn_dlhandle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!fe::cudnn_dlhandle) return failed(error, size, dlerror());
    *version = (int64_t)fe::detail::get_backend_version();
    return 0;
}

// A handle whose work goes into `stream`.
int pawl_cudnn_create(void *stream, void **handle, char *error, size_t size) {
    try {
        cudnnHandle_t made = nullptr;
        auto status = fe::detail::create_handle(&made);
        if (status == CUDNN_STATUS_SUCCESS) status = fe::detail::set_stream(made, (cudaStream_t)stream);
        if (status != CUDNN_STATUS_SUCCESS) return failed(error, size, fe::detail::get_error_string(status));
        *handle = made;
        return 0;
    } catch (const std::exception &e) {
        return failed(error, size, e.what());
    }
}

void pawl_cudnn_destroy(void *handle) {
    try {
        fe::detail::destroy_handle((cudnnHandle_t)handle);
    } catch (const std::exception &) {
    }
}

// A plan of the forward pass, or of the backward pass, and the bytes of scratch memory that it needs.
int pawl_attention_plan(void *handle, const PawlAttention *a, PawlPlan **out, int64_t *workspace, char *error, size_t size) {
    try {
        auto plan = std::make_unique<PawlPlan>();
        auto &graph = plan->graph;
        graph.set_io_data_type(a->half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
        auto dims = [&](Tensor which) -> std::vector<int64_t> {
            const bool of_keys = which == K || which == V || which == DK || which == DV;
            const int64_t rows = of_keys ? a->keys : a->queries, heads = of_keys ? a->groups : a->heads;
            return {a->batch, heads, rows, which == STATS ? 1 : a->width};
        };
        auto strides = [&](Tensor which) -> std::vector<int64_t> {
            return {a->strides[which][0], a->strides[which][1], a->strides[which][2], 1};
        };
        auto input = [&](Tensor which) {
            auto tensor = fe::graph::Tensor_attributes().set_uid(which + 1).set_dim(dims(which)).set_stride(strides(which));
            if (which == STATS) tensor.set_data_type(fe::DataType_t::FLOAT);
            return graph.tensor(tensor);
        };
        auto output = [&](const std::shared_ptr<fe::graph::Tensor_attributes> &tensor, Tensor which) {
            tensor->set_output(true).set_uid(which + 1).set_dim(dims(which)).set_stride(strides(which));
            if (which == STATS) tensor->set_data_type(fe::DataType_t::FLOAT);
        };
        auto q = input(Q), k = input(K), v = input(V);
        if (!a->backward) {
            auto how = fe::graph::SDPA_attributes().set_name("forward").set_generate_stats(true).set_attn_scale(a->scale);
            if (a->causal) how.set_causal_mask(true);
            auto [o, stats] = graph.sdpa(q, k, v, how);
            output(o, O);
            output(stats, STATS);
        } else {
            auto o = input(O), grad = input(GRAD), stats = input(STATS);
            auto how = fe::graph::SDPA_backward_attributes().set_name("backward").set_attn_scale(a->scale);
            if (a->causal) how.set_causal_mask(true);
            if (a->deterministic) how.set_deterministic_algorithm(true);
            auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, grad, stats, how);
            output(dq, DQ);
            output(dk, DK);
            output(dv, DV);
        }
        auto cudnn = (cudnnHandle_t)handle;
        auto status = graph.validate();
        if (status.is_good()) status = graph.build_operation_graph(cudnn);
        if (status.is_good()) status = graph.create_execution_plans({fe::HeurMode_t::A});
        if (status.is_good()) status = graph.check_support(cudnn);
        if (status.is_good()) status = graph.build_plans(cudnn, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
        if (status.is_bad()) return failed(error, size, status.get_message());
        *workspace = plan->workspace = graph.get_workspace_size();
        *out = plan.release();
        return 0;
    } catch (const std::exception &e) {
        return failed(error, size, e.what());
    }
}

// Queues a plan. `addresses` are those of the tensors in the order of `Tensor`, of which those that the plan does not touch may be null.
int pawl_attention_run(void *handle, PawlPlan *plan, void *const *addresses, void *workspace, char *error, size_t size) {
    try {
        std::unordered_map<int64_t, void *> by_id;
        for (int which = 0; which < TENSORS; which++)
            if (addresses[which]) by_id[which + 1] = addresses[which];
        auto status = plan->graph.execute((cudnnHandle_t)handle, by_id, workspace);
        return status.is_bad() ? failed(error, size, status.get_message()) : 0;
    } catch (const std::exception &e) {
        return failed(error, size, e.what());
    }
}

void pawl_attention_free(PawlPlan *plan) { delete plan; }
}
