"""C prototypes of libggml (0.25) that the runtime calls, and their translation to ctypes.

Copied signatures: ggml.h, ggml-backend.h, ggml-alloc.h, ggml-cpu.h and gguf.h of llama.cpp as vendored by
llama-cpp-python 0.3.36. The text is the binding: `bind` parses each line, so what is read here is what is called.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

PROTOTYPES = """
const char * ggml_version(void)
void ggml_log_set(ggml_log_callback log_callback, void * user_data)
size_t ggml_tensor_overhead(void)
size_t ggml_graph_overhead_custom(size_t size, bool grads)
size_t ggml_row_size(enum ggml_type type, int64_t ne)
const char * ggml_type_name(enum ggml_type type)
int64_t ggml_nelements(const struct ggml_tensor * tensor)
struct ggml_context * ggml_init(struct ggml_init_params params)
void ggml_free(struct ggml_context * ctx)
struct ggml_tensor * ggml_new_tensor(struct ggml_context * ctx, enum ggml_type type, int n_dims, const int64_t * ne)
void ggml_set_input(struct ggml_tensor * tensor)
void ggml_set_output(struct ggml_tensor * tensor)

struct ggml_tensor * ggml_add(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_mul(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_div(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_scale(struct ggml_context * ctx, struct ggml_tensor * a, float s)
struct ggml_tensor * ggml_tanh(struct ggml_context * ctx, struct ggml_tensor * a)
struct ggml_tensor * ggml_clamp(struct ggml_context * ctx, struct ggml_tensor * a, float min, float max)
struct ggml_tensor * ggml_sum_rows(struct ggml_context * ctx, struct ggml_tensor * a)
struct ggml_tensor * ggml_soft_max(struct ggml_context * ctx, struct ggml_tensor * a)
struct ggml_tensor * ggml_argsort_top_k(struct ggml_context * ctx, struct ggml_tensor * a, int k)
struct ggml_tensor * ggml_cont(struct ggml_context * ctx, struct ggml_tensor * a)
struct ggml_tensor * ggml_acc(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset)
struct ggml_tensor * ggml_acc_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset)
struct ggml_tensor * ggml_rms_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps)
struct ggml_tensor * ggml_mul_mat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_mul_mat_id(struct ggml_context * ctx, struct ggml_tensor * as, struct ggml_tensor * b, struct ggml_tensor * ids)
void ggml_mul_mat_set_hint(struct ggml_tensor * a, enum ggml_op_hint hint)
struct ggml_tensor * ggml_out_prod(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_get_rows(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_set_rows(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * c)
struct ggml_tensor * ggml_swiglu_split(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_geglu_split(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_rope_ext(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow)
struct ggml_tensor * ggml_flash_attn_ext(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * mask, float scale, float max_bias, float logit_softcap)
void ggml_prec_set_acc(struct ggml_tensor * a, enum ggml_prec prec)
struct ggml_tensor * ggml_reshape(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b)
struct ggml_tensor * ggml_reshape_2d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1)
struct ggml_tensor * ggml_reshape_3d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2)
struct ggml_tensor * ggml_concat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int dim)
struct ggml_tensor * ggml_view_1d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, size_t offset)
struct ggml_tensor * ggml_view_2d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1, size_t nb1, size_t offset)
struct ggml_tensor * ggml_view_3d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1, int64_t ne2, size_t nb1, size_t nb2, size_t offset)
struct ggml_tensor * ggml_transpose(struct ggml_context * ctx, struct ggml_tensor * a)
struct ggml_tensor * ggml_permute(struct ggml_context * ctx, struct ggml_tensor * a, int axis0, int axis1, int axis2, int axis3)

struct ggml_cgraph * ggml_new_graph_custom(struct ggml_context * ctx, size_t size, bool grads)
void ggml_build_forward_expand(struct ggml_cgraph * cgraph, struct ggml_tensor * tensor)
int ggml_graph_n_nodes(struct ggml_cgraph * cgraph)
struct ggml_tensor * ggml_graph_node(struct ggml_cgraph * cgraph, int i)
const char * ggml_op_desc(const struct ggml_tensor * t)

ggml_gallocr_t ggml_gallocr_new(ggml_backend_buffer_type_t buft)
void ggml_gallocr_free(ggml_gallocr_t galloc)
bool ggml_gallocr_reserve(ggml_gallocr_t galloc, struct ggml_cgraph * graph)
void ggml_gallocr_reserve_n_size(ggml_gallocr_t galloc, struct ggml_cgraph * graph, const int * node_buffer_ids, const int * leaf_buffer_ids, size_t * sizes)
bool ggml_gallocr_alloc_graph(ggml_gallocr_t galloc, struct ggml_cgraph * graph)
size_t ggml_gallocr_get_buffer_size(ggml_gallocr_t galloc, int buffer_id)
ggml_backend_buffer_t ggml_backend_alloc_ctx_tensors_from_buft(struct ggml_context * ctx, ggml_backend_buffer_type_t buft)

ggml_backend_buffer_type_t ggml_backend_dev_buffer_type(ggml_backend_dev_t device)
ggml_backend_buffer_t ggml_backend_dev_buffer_from_host_ptr(ggml_backend_dev_t device, void * ptr, size_t size, size_t max_tensor_size)
const char * ggml_backend_buft_name(ggml_backend_buffer_type_t buft)
ggml_backend_dev_t ggml_backend_dev_by_type(enum ggml_backend_dev_type type)
size_t ggml_backend_dev_count(void)
ggml_backend_dev_t ggml_backend_dev_get(size_t index)
const char * ggml_backend_dev_name(ggml_backend_dev_t device)
enum ggml_backend_dev_type ggml_backend_dev_type(ggml_backend_dev_t device)
ggml_backend_reg_t ggml_backend_dev_backend_reg(ggml_backend_dev_t device)
const char * ggml_backend_reg_name(ggml_backend_reg_t reg)
void * ggml_backend_reg_get_proc_address(ggml_backend_reg_t reg, const char * name)
bool ggml_backend_dev_supports_op(ggml_backend_dev_t device, const struct ggml_tensor * op)
const char * ggml_backend_dev_description(ggml_backend_dev_t device)
void ggml_backend_dev_memory(ggml_backend_dev_t device, size_t * free, size_t * total)
ggml_backend_t ggml_backend_dev_init(ggml_backend_dev_t device, const char * params)
void ggml_backend_free(ggml_backend_t backend)
void ggml_backend_buffer_free(ggml_backend_buffer_t buffer)
size_t ggml_backend_buffer_get_size(ggml_backend_buffer_t buffer)
void ggml_backend_buffer_clear(ggml_backend_buffer_t buffer, uint8_t value)
void ggml_backend_buffer_set_usage(ggml_backend_buffer_t buffer, enum ggml_backend_buffer_usage usage)
enum ggml_status ggml_backend_tensor_alloc(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, void * addr)
void ggml_backend_tensor_set(struct ggml_tensor * tensor, const void * data, size_t offset, size_t size)
void ggml_backend_tensor_get(const struct ggml_tensor * tensor, void * data, size_t offset, size_t size)
enum ggml_status ggml_backend_graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph)
ggml_backend_sched_t ggml_backend_sched_new(ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts, int n_backends, size_t graph_size, bool parallel, bool op_offload)
void ggml_backend_sched_free(ggml_backend_sched_t sched)
void ggml_backend_sched_reset(ggml_backend_sched_t sched)
bool ggml_backend_sched_reserve(ggml_backend_sched_t sched, struct ggml_cgraph * measure_graph)
void ggml_backend_sched_reserve_size(ggml_backend_sched_t sched, struct ggml_cgraph * measure_graph, size_t * sizes)
bool ggml_backend_sched_alloc_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph)
enum ggml_status ggml_backend_sched_graph_compute(ggml_backend_sched_t sched, struct ggml_cgraph * graph)
size_t ggml_backend_sched_get_buffer_size(ggml_backend_sched_t sched, ggml_backend_t backend)
void ggml_backend_cpu_set_n_threads(ggml_backend_t backend_cpu, int n_threads)
void ggml_backend_cpu_set_abort_callback(ggml_backend_t backend_cpu, ggml_abort_callback abort_callback, void * abort_callback_data)

struct gguf_context * gguf_init_from_file(const char * fname, struct gguf_init_params params)
void gguf_free(struct gguf_context * ctx)
size_t gguf_get_data_offset(const struct gguf_context * ctx)
int64_t gguf_get_n_kv(const struct gguf_context * ctx)
int64_t gguf_find_key(const struct gguf_context * ctx, const char * key)
const char * gguf_get_key(const struct gguf_context * ctx, int64_t key_id)
enum gguf_type gguf_get_kv_type(const struct gguf_context * ctx, int64_t key_id)
enum gguf_type gguf_get_arr_type(const struct gguf_context * ctx, int64_t key_id)
const char * gguf_get_val_str(const struct gguf_context * ctx, int64_t key_id)
const void * gguf_get_val_data(const struct gguf_context * ctx, int64_t key_id)
size_t gguf_get_arr_n(const struct gguf_context * ctx, int64_t key_id)
const void * gguf_get_arr_data(const struct gguf_context * ctx, int64_t key_id)
const char * gguf_get_arr_str(const struct gguf_context * ctx, int64_t key_id, size_t i)
int64_t gguf_get_n_tensors(const struct gguf_context * ctx)
size_t gguf_get_tensor_offset(const struct gguf_context * ctx, int64_t tensor_id)
const char * gguf_get_tensor_name(const struct gguf_context * ctx, int64_t tensor_id)
const int64_t * gguf_get_tensor_ne(const struct gguf_context * ctx, int64_t tensor_id)
enum ggml_type gguf_get_tensor_type(const struct gguf_context * ctx, int64_t tensor_id)
size_t gguf_get_tensor_size(const struct gguf_context * ctx, int64_t tensor_id)
"""  # noqa: E501 - a prototype stays on its line


class InitParams(ctypes.Structure):
    """struct ggml_init_params { size_t mem_size; void * mem_buffer; bool no_alloc; }"""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class GgufInitParams(ctypes.Structure):
    """struct gguf_init_params { bool no_alloc; struct ggml_context ** ctx; }"""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.POINTER(ctypes.c_void_p)))


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

_SCALARS: dict[str, Any] = {
    "void": None,
    "bool": ctypes.c_bool,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "struct ggml_init_params": InitParams,
    "struct gguf_init_params": GgufInitParams,
    "ggml_log_callback": LogCallback,
    # A plain address: libc's strlen serves as the callback, so that no Python runs inside a step.
    "ggml_abort_callback": ctypes.c_void_p,
}
_HANDLES = re.compile(r"(ggml_backend(_buffer_type|_buffer|_dev|_reg|_sched)?|ggml_gallocr)_t")
_LINE = re.compile(r"(?P<result>.+?[\s*])(?P<name>gg\w+)\((?P<arguments>.*)\)")


def _ctype(declaration: str) -> Any:
    text = " ".join(declaration.replace("*", " * ").split())
    if text == "const char *":
        return ctypes.c_char_p
    if text.endswith("*") or _HANDLES.fullmatch(text):
        return ctypes.c_void_p
    if text.startswith("enum "):
        return ctypes.c_int
    return _SCALARS[text]


def _argument(declaration: str) -> Any:
    return _ctype(declaration[: -len(re.findall(r"\w+$", declaration)[0])])


def bind(libraries: list[ctypes.CDLL]) -> dict[str, Any]:
    """Looks every prototype up in `libraries`, in order, and types it.

    Raises:
        AttributeError: naming the first symbol that none of the libraries exports.
    """
    functions: dict[str, Any] = {}
    for line in PROTOTYPES.strip().splitlines():
        if not line:
            continue
        match = _LINE.fullmatch(line)
        assert match is not None, line
        name, arguments = match["name"], match["arguments"]
        function = next((getattr(library, name) for library in libraries if hasattr(library, name)), None)
        if function is None:
            raise AttributeError(name)
        function.restype = _ctype(match["result"])
        function.argtypes = [] if arguments == "void" else [_argument(part.strip()) for part in arguments.split(",")]
        functions[name] = function
    return functions
