// One unit of attention against plain double arithmetic, and the promise that tiles, spans and pages never show.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "native/attention/plan.h"
#include "native/isa/isa.h"
#include "native/kv/place.h"
#include "native/tests/check.h"

namespace sojourn::test {
namespace {

constexpr int kContext = 700;  // almost three spans

struct Shape {
    int head_dim;
    int group;
    int window;
    float softcap;
    int page_size;
};

// One sequence's K, V and queries, stored in pages in falling order.
class World {
public:
    World(const Kernels& kernels, const Shape& shape, KvType type)
        : kernels_(kernels), shape_(shape), type_(type), store_(kv_shape()) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        const size_t head = static_cast<size_t>(shape.head_dim);
        keys_.resize(kContext * head);
        values_.resize(kContext * head);
        queries_.resize(kContext * head * static_cast<size_t>(shape.group));
        for (auto* values : {&keys_, &values_, &queries_}) {
            for (float& value : *values) value = std::round(normal(random) * 64.0f) / 64.0f;  // exact in f16
        }
        const int pages = store_.shape().pages;
        for (int i = 0; i < pages - 1; i++) table_.push_back(pages - 1 - i);
        for (int position = 0; position < kContext; position++) store(position);
    }

    // Outputs of tokens [begin, end), by one unit with all spans or by one unit per span.
    std::vector<float> attend(int begin, int end, bool is_split) const {
        const size_t head = static_cast<size_t>(shape_.head_dim);
        const int rows = (end - begin) * shape_.group;
        const size_t stride = static_cast<size_t>(partial_stride(shape_.head_dim));
        std::vector<float> output(rows * head), queries(rows * head), running(rows * stride), current(rows * stride);
        std::vector<float> gathered(2 * kSpan * head);
        const AttentionScratch scratch{queries.data(), running.data(), current.data(),
                                       reinterpret_cast<std::byte*>(gathered.data())};
        AttentionUnit unit = unit_of(begin, end);
        unit.output = output.data();
        const auto run = type_ == KvType::F16 ? kernels_.attend_f16 : kernels_.attend_f32;
        if (!is_split) {
            run(unit, scratch);
            return output;
        }
        const int spans = unit.span_end - unit.span_begin;
        std::vector<float> partials(rows * spans * stride);
        unit.partials = partials.data();
        unit.partial_first = unit.span_begin;
        unit.partial_spans = spans;
        for (int span = unit.partial_first + spans; span-- > unit.partial_first;) {
            unit.span_begin = span;
            unit.span_end = span + 1;
            run(unit, scratch);
        }
        for (int row = 0; row < rows; row++) {
            kernels_.merge_partials(partials.data() + static_cast<size_t>(row * spans) * stride, spans,
                                    shape_.head_dim, running.data(), output.data() + row * head);
        }
        return output;
    }

    double expected(int token, int g, int d) const {
        const int first = shape_.window > 0 ? std::max(0, token + 1 - shape_.window) : 0;
        std::vector<double> scores;
        for (int position = first; position <= token; position++) {
            double score = 0;
            for (int i = 0; i < shape_.head_dim; i++) score += query(token, g)[i] * key(position)[i];
            score *= 0.125;
            if (shape_.softcap != 0) score = shape_.softcap * std::tanh(score / shape_.softcap);
            scores.push_back(score);
        }
        const double maximum = *std::max_element(scores.begin(), scores.end());
        double sum = 0, result = 0;
        for (size_t i = 0; i < scores.size(); i++) {
            const double weight = std::exp(scores[i] - maximum);
            sum += weight;
            result += weight * values_[(static_cast<size_t>(first) + i) * shape_.head_dim + d];
        }
        return result / sum;
    }

private:
    KvShape kv_shape() const {
        return {.layers = 1,
                .pages = (kContext + shape_.page_size - 1) / shape_.page_size + 1,
                .kv_heads = 1,
                .head_dim = shape_.head_dim,
                .page_size = shape_.page_size,
                .type = type_};
    }
    const float* key(int position) const { return keys_.data() + position * shape_.head_dim; }
    const float* query(int token, int g) const {
        return queries_.data() + (token * shape_.group + g) * shape_.head_dim;
    }

    void store(int position) {
        const int size = shape_.page_size;
        std::byte* head = store_.head(0, table_[static_cast<size_t>(position / size)], 0);
        const PlaceInPage place = place_in_page(store_.shape(), position % size);
        const auto run = type_ == KvType::F16 ? kernels_.store_kv_f16 : kernels_.store_kv_f32;
        run(key(position), values_.data() + position * shape_.head_dim, shape_.head_dim, head + place.keys,
            place.key_stride, head + place.values);
    }

    AttentionUnit unit_of(int begin, int end) const {
        AttentionUnit unit;
        unit.kv = {store_.head(0, 0, 0), store_.shape().page_bytes_per_layer(), table_.data(),
                   static_cast<int>(table_.size()), shape_.page_size};
        unit.head_dim = shape_.head_dim;
        unit.tokens = end - begin;
        unit.group = shape_.group;
        unit.first_position = begin;
        unit.window = shape_.window;
        unit.span_begin = (shape_.window > 0 ? std::max(0, begin + 1 - shape_.window) : 0) / kSpan;
        unit.span_end = (end - 1) / kSpan + 1;
        unit.scale = 0.125f;
        unit.softcap = shape_.softcap;
        unit.query = query(begin, 0);
        unit.query_stride = static_cast<size_t>(shape_.group * shape_.head_dim);
        unit.output_stride = unit.query_stride;
        return unit;
    }

    const Kernels& kernels_;
    Shape shape_;
    KvType type_;
    KvStore store_;
    std::vector<int32_t> table_;
    std::vector<float> keys_, values_, queries_;
};

void test_shape(const Kernels& kernels, const Shape& shape, KvType type) {
    const World world(kernels, shape, type);
    const size_t row = static_cast<size_t>(shape.group * shape.head_dim);
    const int tokens = tokens_per_unit(shape.group);
    for (const int begin : {0, 30, kSpan - 2, 2 * kSpan, kContext - tokens}) {
        const auto together = world.attend(begin, begin + tokens, false);
        const auto split = world.attend(begin, begin + tokens, true);
        check(std::memcmp(together.data(), split.data(), together.size() * sizeof(float)) == 0,
              "%s: spans show (head_dim %d, group %d, at %d)", kernels.name, shape.head_dim, shape.group, begin);
        for (int token = 0; token < tokens; token++) {
            const auto alone = world.attend(begin + token, begin + token + 1, token % 2 == 0);
            check(std::memcmp(alone.data(), together.data() + token * row, row * sizeof(float)) == 0,
                  "%s: company shows (head_dim %d, group %d, token %d)", kernels.name, shape.head_dim, shape.group,
                  begin + token);
        }
        for (int d = 0; d < shape.head_dim; d += 7) {
            const double error = std::fabs(together[static_cast<size_t>(d)] - world.expected(begin, 0, d));
            check(error < 1e-5, "%s: off by %g (head_dim %d, group %d, at %d)", kernels.name, error, shape.head_dim,
                  shape.group, begin);
        }
    }
}

}  // namespace
}  // namespace sojourn::test

int main() {
    using namespace sojourn;
    for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512}) {
        if (!is_supported(isa)) continue;
        for (const KvType type : {KvType::F16, KvType::F32}) {
            test::test_shape(kernels_for(isa), {64, 3, 0, 0.0f, 16}, type);
            test::test_shape(kernels_for(isa), {48, 1, 0, 0.0f, 256}, type);
            test::test_shape(kernels_for(isa), {16, 7, 100, 0.0f, 1}, type);
            test::test_shape(kernels_for(isa), {32, 30, 300, 5.0f, 8}, type);
            test::test_shape(kernels_for(isa), {80, 4, 17, 30.0f, 32}, type);
        }
    }
    return test::report("test_attention");
}
