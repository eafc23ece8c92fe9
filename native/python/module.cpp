// The core as a Python module: arrays in, arrays out, no decisions. `backends/native.py` is its only user.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "native/step/core.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sojourn {

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T, int Dims>
using Result = nb::ndarray<nb::numpy, T, nb::ndim<Dims>>;

template <class T>
std::span<const T> span_of(const Array<T>& array) {
    return {array.data(), array.size()};
}

// A fresh array that Python will own.
template <class T, int Dims>
Result<T, Dims> new_array(std::initializer_list<size_t> shape) {
    size_t size = 1;
    for (const size_t n : shape) size *= n;
    T* data = new T[size];
    nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
    return Result<T, Dims>(data, shape, owner);
}

MatrixKind kind_of(const std::string& name) {
    if (name == "f32") return MatrixKind::F32;
    if (name == "q8") return MatrixKind::Q8;
    if (name == "q4") return MatrixKind::Q4;
    if (name == "q4m") return MatrixKind::Q4M;
    throw std::invalid_argument("unknown kind of matrix: " + name);
}

Isa isa_of(const std::string& name) {
    if (name == "auto") return best_isa();
    if (name == "portable") return Isa::Portable;
    if (name == "avx2") return Isa::Avx2;
    if (name == "avx512") return Isa::Avx512;
    throw std::invalid_argument("unknown instruction set: " + name);
}

// Takes weights by name, then becomes a core, once. Keeps the arrays alive: the core reads them in place.
class Weights {
public:
    explicit Weights(const ModelConfig& config) : model_(std::make_unique<Model>(config)) {}

    void add_matrix(const std::string& name, const std::string& kind, int rows, int cols, const Array<uint8_t>& data,
                    std::optional<Array<uint16_t>> scales, std::optional<Array<uint16_t>> mins) {
        require_model();
        Matrix matrix;
        matrix.kind = kind_of(kind);
        matrix.rows = rows;
        matrix.cols = cols;
        matrix.data = data.data();
        const size_t elements = static_cast<size_t>(num_blocks(matrix)) * kRowsPerBlock * static_cast<size_t>(cols);
        const bool is_narrow = matrix.kind == MatrixKind::Q4 || matrix.kind == MatrixKind::Q4M;
        const size_t bytes = matrix.kind == MatrixKind::F32 ? elements * 4 : is_narrow ? elements / 2 : elements;
        check_size(name, data.size(), bytes);
        if (matrix.kind != MatrixKind::F32) matrix.scales = halfs(name + " scales", scales, elements / kGroup);
        if (matrix.kind == MatrixKind::Q4M) matrix.mins = halfs(name + " mins", mins, elements / kGroup);
        model_->set_matrix(name, matrix);
        kept_bytes_.push_back(data);
    }

    void add_vector(const std::string& name, const Array<float>& data) {
        require_model();
        model_->set_vector(name, data.data(), data.size());
        kept_floats_.push_back(data);
    }

    std::unique_ptr<const Model> take() {
        require_model();
        return std::move(model_);
    }

private:
    void require_model() const {
        if (model_ == nullptr) throw std::invalid_argument("these weights have become a core");
    }

    static void check_size(const std::string& name, size_t size, size_t expected) {
        if (size == expected) return;
        throw std::invalid_argument(name + ": has " + std::to_string(size) + " entries, must have " +
                                    std::to_string(expected));
    }

    const uint16_t* halfs(const std::string& name, const std::optional<Array<uint16_t>>& array, size_t expected) {
        check_size(name, array ? array->size() : 0, expected);
        kept_halfs_.push_back(*array);
        return array->data();
    }

    std::unique_ptr<Model> model_;
    std::vector<Array<uint8_t>> kept_bytes_;
    std::vector<Array<uint16_t>> kept_halfs_;
    std::vector<Array<float>> kept_floats_;
};

// What `SamplingBatch` is in Python: the rows' parameters, column by column.
struct SamplingArrays {
    Array<float> temperature;
    Array<int32_t> top_k;
    Array<float> top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    Array<uint64_t> seeds;
    Array<int64_t> positions, bias_offsets;
    Array<int32_t> bias_ids;
    Array<float> bias_values;
    Array<int64_t> history_offsets;
    Array<int32_t> history, history_prompt, known;
    int num_logprobs;
};

template <class T>
std::span<const T> part(const Array<T>& values, const Array<int64_t>& offsets, size_t row) {
    const int64_t begin = offsets.data()[row];
    const int64_t end = offsets.data()[row + 1];
    if (begin < 0 || end < begin || end > static_cast<int64_t>(values.size())) {
        throw std::invalid_argument("offsets of row " + std::to_string(row) + " are [" + std::to_string(begin) + ", " +
                                    std::to_string(end) + ") of " + std::to_string(values.size()));
    }
    return span_of(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

std::vector<SamplingRow> rows_of(const SamplingArrays& s) {
    const size_t count = s.temperature.size();
    const bool same = s.top_k.size() == count && s.top_p.size() == count && s.min_p.size() == count &&
                      s.repetition_penalty.size() == count && s.presence_penalty.size() == count &&
                      s.frequency_penalty.size() == count && s.seeds.size() == count && s.positions.size() == count &&
                      s.bias_offsets.size() == count + 1 && s.history_offsets.size() == count + 1 &&
                      s.history_prompt.size() == count && s.known.size() == count &&
                      s.bias_ids.size() == s.bias_values.size();
    if (!same) throw std::invalid_argument("sampling arrays differ in length");
    std::vector<SamplingRow> rows(count);
    for (size_t i = 0; i < count; i++) {
        rows[i] = {.temperature = s.temperature.data()[i],
                   .top_k = s.top_k.data()[i],
                   .top_p = s.top_p.data()[i],
                   .min_p = s.min_p.data()[i],
                   .repetition_penalty = s.repetition_penalty.data()[i],
                   .presence_penalty = s.presence_penalty.data()[i],
                   .frequency_penalty = s.frequency_penalty.data()[i],
                   .seed = s.seeds.data()[i],
                   .position = s.positions.data()[i],
                   .bias_ids = part(s.bias_ids, s.bias_offsets, i),
                   .bias_values = part(s.bias_values, s.bias_offsets, i),
                   .history = part(s.history, s.history_offsets, i),
                   .num_prompt = s.history_prompt.data()[i],
                   .known = s.known.data()[i]};
    }
    return rows;
}

// A core and the weights it reads.
class PyCore {
public:
    PyCore(Weights weights, const CoreOptions& options)
        : core_(std::make_unique<Core>(weights.take(), options)), weights_(std::move(weights)) {}

    nb::tuple step(const Array<int32_t>& tokens, const Array<int32_t>& sequences, const Array<int32_t>& starts,
                   const Array<int32_t>& lengths,
                   const nb::ndarray<const int32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>& edits,
                   const Array<int32_t>& logit_rows, const std::optional<SamplingArrays>& sampling, bool want_logits) {
        static_assert(sizeof(TableEdit) == 4 * sizeof(int32_t));
        const std::vector<SamplingRow> sampling_rows = sampling ? rows_of(*sampling) : std::vector<SamplingRow>();
        const int num_logprobs = sampling ? sampling->num_logprobs : -1;
        const Batch batch{.tokens = span_of(tokens),
                          .sequences = span_of(sequences),
                          .starts = span_of(starts),
                          .lengths = span_of(lengths),
                          .edits = {reinterpret_cast<const TableEdit*>(edits.data()), edits.shape(0)},
                          .logit_rows = span_of(logit_rows),
                          .sampling = sampling_rows,
                          .num_logprobs = num_logprobs};
        const size_t rows = logit_rows.size();
        const size_t best = num_logprobs > 0 ? static_cast<size_t>(num_logprobs) : 0;
        const size_t vocab = want_logits ? static_cast<size_t>(core_->config().vocab_size) : 0;
        auto drawn = new_array<int32_t, 1>({sampling ? rows : 0});
        auto logprobs = new_array<float, 1>({num_logprobs >= 0 ? rows : 0});
        auto top_ids = new_array<int32_t, 2>({rows, best});
        auto top_logprobs = new_array<float, 2>({rows, best});
        auto logits = new_array<float, 2>({want_logits ? rows : 0, vocab});
        const BatchOutput output{drawn.data(), logprobs.data(), top_ids.data(), top_logprobs.data(),
                                 want_logits ? logits.data() : nullptr};
        {
            nb::gil_scoped_release release;
            core_->step(batch, output);
        }
        return nb::make_tuple(drawn, logprobs, top_ids, top_logprobs, logits);
    }

    size_t page_bytes(int pool) const { return core_->page_bytes(pool); }

    Result<uint8_t, 2> read_pages(int pool, const Array<int32_t>& pages) const {
        auto data = new_array<uint8_t, 2>({pages.size(), core_->page_bytes(pool)});
        {
            nb::gil_scoped_release release;
            core_->read_pages(pool, span_of(pages), reinterpret_cast<std::byte*>(data.data()));
        }
        return data;
    }

    void write_pages(int pool, const Array<int32_t>& pages,
                     const nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& data) {
        if (data.shape(0) != pages.size() || data.shape(1) != core_->page_bytes(pool)) {
            throw std::invalid_argument("the bytes are not those of as many pages");
        }
        nb::gil_scoped_release release;
        core_->write_pages(pool, span_of(pages), reinterpret_cast<const std::byte*>(data.data()));
    }

    std::string instruction_set() const { return core_->instruction_set(); }

private:
    std::unique_ptr<Core> core_;
    Weights weights_;
};

std::map<std::string, bool> cpu_features() {
    return {{"portable", is_supported(Isa::Portable)},
            {"avx2", is_supported(Isa::Avx2)},
            {"avx512", is_supported(Isa::Avx512)}};
}

void bind_config(nb::module_& module) {
    nb::enum_<Activation>(module, "Activation")
        .value("SILU", Activation::Silu)
        .value("GELU_TANH", Activation::GeluTanh);
    nb::class_<Rope>(module, "Rope")
        .def(nb::init<std::vector<float>, float>(), "inv_freq"_a, "attention_factor"_a);
    nb::class_<ModelConfig>(module, "ModelConfig")
        .def(nb::init<>())
        .def_rw("vocab_size", &ModelConfig::vocab_size)
        .def_rw("hidden_size", &ModelConfig::hidden_size)
        .def_rw("intermediate_size", &ModelConfig::intermediate_size)
        .def_rw("context_length", &ModelConfig::context_length)
        .def_rw("rms_norm_eps", &ModelConfig::rms_norm_eps)
        .def_rw("activation", &ModelConfig::activation)
        .def_rw("embedding_scale", &ModelConfig::embedding_scale)
        .def_rw("logit_softcap", &ModelConfig::logit_softcap)
        .def_rw("tied_embeddings", &ModelConfig::tied_embeddings)
        .def_rw("post_norms", &ModelConfig::post_norms)
        .def_rw("num_heads", &ModelConfig::num_heads)
        .def_rw("num_kv_heads", &ModelConfig::num_kv_heads)
        .def_rw("head_dim", &ModelConfig::head_dim)
        .def_rw("query_scale", &ModelConfig::query_scale)
        .def_rw("qk_norm", &ModelConfig::qk_norm)
        .def_rw("qkv_bias", &ModelConfig::qkv_bias)
        .def_rw("attention_softcap", &ModelConfig::attention_softcap)
        .def_rw("sliding_window", &ModelConfig::sliding_window)
        .def_rw("layer_slides", &ModelConfig::layer_slides)
        .def_rw("rope", &ModelConfig::rope)
        .def_rw("rope_sliding", &ModelConfig::rope_sliding);
}

void bind_core(nb::module_& module) {
    nb::class_<Weights>(module, "Weights")
        .def(nb::init<const ModelConfig&>(), "config"_a)
        .def("add_matrix", &Weights::add_matrix, "name"_a, "kind"_a, "rows"_a, "cols"_a, "data"_a, "scales"_a.none(),
             "mins"_a.none())
        .def("add_vector", &Weights::add_vector, "name"_a, "data"_a);
    nb::class_<SamplingArrays>(module, "SamplingArrays")
        .def(nb::init<Array<float>, Array<int32_t>, Array<float>, Array<float>, Array<float>, Array<float>, Array<float>,
                      Array<uint64_t>, Array<int64_t>, Array<int64_t>, Array<int32_t>, Array<float>, Array<int64_t>,
                      Array<int32_t>, Array<int32_t>, Array<int32_t>, int>(),
             "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition_penalty"_a, "presence_penalty"_a,
             "frequency_penalty"_a, "seeds"_a, "positions"_a, "bias_offsets"_a, "bias_ids"_a, "bias_values"_a,
             "history_offsets"_a, "history"_a, "history_prompt"_a, "known"_a, "num_logprobs"_a);
    nb::class_<PyCore>(module, "Core")
        .def(
            "__init__",
            [](PyCore* self, Weights& weights, int page_size, int full_pages, int sliding_pages, bool half_kv,
               int threads, int sequences, const std::string& instruction_set) {
                new (self) PyCore(std::move(weights), CoreOptions{.page_size = page_size,
                                                                  .num_pages = {full_pages, sliding_pages},
                                                                  .kv_type = half_kv ? KvType::F16 : KvType::F32,
                                                                  .threads = threads,
                                                                  .sequences = sequences,
                                                                  .isa = isa_of(instruction_set)});
            },
            "weights"_a, "page_size"_a, "full_pages"_a, "sliding_pages"_a, "half_kv"_a, "threads"_a, "sequences"_a,
            "instruction_set"_a)
        .def_prop_ro("instruction_set", &PyCore::instruction_set)
        .def("page_bytes", &PyCore::page_bytes, "pool"_a)
        .def("read_pages", &PyCore::read_pages, "pool"_a, "pages"_a)
        .def("write_pages", &PyCore::write_pages, "pool"_a, "pages"_a, "data"_a)
        .def("step", &PyCore::step, "tokens"_a, "sequences"_a, "starts"_a, "lengths"_a, "edits"_a, "logit_rows"_a,
             "sampling"_a.none(), "want_logits"_a);
}

}  // namespace

}  // namespace sojourn

NB_MODULE(_native, module) {
    // An engine that was not closed is alive at the interpreter's end; that is no leak of ours to tell its user about.
    nb::set_leak_warnings(false);
    module.doc() = "The native core of sojourn.";
    sojourn::bind_config(module);
    sojourn::bind_core(module);
    module.def("cpu_features", &sojourn::cpu_features, "Which instruction sets this processor and build can use.");
}
