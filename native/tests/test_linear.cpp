// Linear kernels of every instruction set against a double reference, and the promise that tiles never show.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "native/isa/isa.h"
#include "native/tests/check.h"
#include "native/tests/packed_matrix.h"

namespace sojourn::test {
namespace {

constexpr MatrixKind kKinds[] = {MatrixKind::F32, MatrixKind::Q8, MatrixKind::Q4, MatrixKind::Q4M};
constexpr Isa kIsas[] = {Isa::Portable, Isa::Avx2, Isa::Avx512};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double reference(const PackedMatrix& w, const ActivationRows& x, int row, int output) {
    double sum = 0;
    for (int k = 0; k < w.matrix.cols; ++k) sum += w.at(output, k) * x.at(w.matrix.kind, row, k);
    return sum;
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu_tanh(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

void test_quantise(const Kernels& kernels) {
    std::mt19937 random(1);
    ActivationRows x(3, 96, random);
    for (int k = 0; k < 32; ++k) x.value(1, 32 + k) = 0.0f;
    x.value(2, 5) = -40.0f;
    kernels.quantise(x.view, {0, 3});
    for (int row = 0; row < 3; ++row) {
        for (int group = 0; group < 3; ++group) {
            const float* values = x.view.values + row * 96 + group * 32;
            float absmax = 0;
            for (int k = 0; k < 32; ++k) absmax = std::max(absmax, std::fabs(values[k]));
            const float scale = x.view.scales[row * 3 + group];
            check(scale == absmax / 127.0f, "%s: scale of row %d group %d", kernels.name, row, group);
            int sum = 0;
            for (int k = 0; k < 32; ++k) {
                const int quant = x.view.quants[row * 96 + group * 32 + k];
                const float expected = scale == 0 ? 0 : std::nearbyint(values[k] * (1.0f / scale));
                check(quant == expected, "%s: quant %d is %d, not %g", kernels.name, k, quant, double{expected});
                sum += quant;
            }
            check(x.view.isums[row * 3 + group] == sum, "%s: isum", kernels.name);
            check(x.view.sums[row * 3 + group] == scale * float(sum), "%s: sum", kernels.name);
        }
    }
}

// What is not finite must not turn into a plausible number, and must not disturb the group beside it.
void test_quantise_faults(const Kernels& kernels) {
    for (const float fault : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::mt19937 random(2);
        ActivationRows x(1, 64, random);
        x.value(0, 17) = fault;
        kernels.quantise(x.view, {0, 1});
        check(std::isnan(x.view.scales[0]) && std::isnan(x.view.sums[0]), "%s: a fault was hidden", kernels.name);
        check(std::isfinite(x.view.scales[1]), "%s: a fault spread", kernels.name);
    }
    std::mt19937 random(3);
    ActivationRows x(1, 32, random);
    for (int k = 0; k < 32; ++k) x.value(0, k) = 1e-42f;
    kernels.quantise(x.view, {0, 1});
    check(x.view.scales[0] == 0 && x.view.quants[0] == 0, "%s: denormals", kernels.name);
}

void test_against_reference(const Kernels& kernels, MatrixKind kind) {
    std::mt19937 random(4);
    const int rows = 9, outputs = 16 * 6 + 5, cols = 160, stride = outputs + 3;
    const PackedMatrix w(kind, outputs, cols, random), up(kind, outputs, cols, random);
    ActivationRows x(rows, cols, random);
    kernels.quantise(x.view, {0, rows});
    const Range all_rows{0, rows}, all_blocks{0, num_blocks(w.matrix)};
    std::vector<float> store(rows * stride, 7.0f), add = store, silu_out = store, gelu_out = store;
    kernels.linear(w.matrix, x.view, all_rows, all_blocks, store.data(), stride, Epilogue::Store);
    kernels.linear(w.matrix, x.view, all_rows, all_blocks, add.data(), stride, Epilogue::Add);
    kernels.gated(w.matrix, up.matrix, x.view, all_rows, all_blocks, silu_out.data(), stride, Activation::Silu);
    kernels.gated(w.matrix, up.matrix, x.view, all_rows, all_blocks, gelu_out.data(), stride, Activation::GeluTanh);
    for (int row = 0; row < rows; ++row) {
        for (int output = 0; output < stride; ++output) {
            const size_t i = size_t(row) * stride + output;
            if (output >= outputs) {
                check(store[i] == 7 && add[i] == 7 && silu_out[i] == 7, "%s: wrote past a row", kernels.name);
                continue;
            }
            const double gate = reference(w, x, row, output), value = reference(up, x, row, output);
            const double expected[] = {gate, gate + 7, silu(gate) * value, gelu_tanh(gate) * value};
            const float got[] = {store[i], add[i], silu_out[i], gelu_out[i]};
            for (int form = 0; form < 4; ++form) {
                check(std::fabs(got[form] - expected[form]) < 2e-5 * (1 + std::fabs(expected[form])),
                      "%s kind %d form %d at (%d, %d): %g, not %g", kernels.name, int(kind), form, row, output,
                      double{got[form]}, expected[form]);
            }
        }
    }
}

// Any range of rows and blocks, so any tile, gives the same bits.
void test_invariance(const Kernels& kernels, MatrixKind kind) {
    std::mt19937 random(5);
    const int rows = 25, outputs = 16 * 7 + 9, cols = 64;
    const PackedMatrix w(kind, outputs, cols, random), up(kind, outputs, cols, random);
    ActivationRows x(rows, cols, random);
    kernels.quantise(x.view, {0, rows});
    const int blocks = num_blocks(w.matrix);
    std::vector<float> whole(rows * outputs), whole_gated(rows * outputs);
    kernels.linear(w.matrix, x.view, {0, rows}, {0, blocks}, whole.data(), outputs, Epilogue::Store);
    kernels.gated(w.matrix, up.matrix, x.view, {0, rows}, {0, blocks}, whole_gated.data(), outputs, Activation::Silu);
    for (int row_step = 1; row_step <= 13; ++row_step) {
        for (int block_step = 1; block_step <= 7; ++block_step) {
            std::vector<float> parts(rows * outputs), parts_gated(rows * outputs);
            for (int row = 0; row < rows; row += row_step) {
                for (int block = 0; block < blocks; block += block_step) {
                    const Range m{row, std::min(rows, row + row_step)}, b{block, std::min(blocks, block + block_step)};
                    kernels.linear(w.matrix, x.view, m, b, parts.data(), outputs, Epilogue::Store);
                    kernels.gated(w.matrix, up.matrix, x.view, m, b, parts_gated.data(), outputs, Activation::Silu);
                }
            }
            check(same_bits(whole, parts) && same_bits(whole_gated, parts_gated),
                  "%s kind %d: bits changed with steps of %d rows and %d blocks", kernels.name, int(kind), row_step,
                  block_step);
        }
    }
}

// A file may quantise the two halves of a gated layer differently.
void test_mixed_kinds(const Kernels& kernels) {
    std::mt19937 random(6);
    const PackedMatrix gate(MatrixKind::Q4, 40, 64, random), up(MatrixKind::Q8, 40, 64, random);
    ActivationRows x(2, 64, random);
    kernels.quantise(x.view, {0, 2});
    std::vector<float> out(2 * 40);
    kernels.gated(gate.matrix, up.matrix, x.view, {0, 2}, {0, 3}, out.data(), 40, Activation::GeluTanh);
    for (int i = 0; i < 80; ++i) {
        const double expected = gelu_tanh(reference(gate, x, i / 40, i % 40)) * reference(up, x, i / 40, i % 40);
        check(std::fabs(out[i] - expected) < 2e-5 * (1 + std::fabs(expected)), "%s: mixed kinds at %d", kernels.name,
              i);
    }
}

void test_embed(const Kernels& kernels, MatrixKind kind) {
    std::mt19937 random(7);
    const PackedMatrix w(kind, 35, 96, random);
    for (const int row : {0, 15, 16, 34}) {
        std::vector<float> out(96);
        kernels.embed_row(w.matrix, row, out.data(), 3.0f);
        for (int k = 0; k < 96; ++k) {
            // Two float operations at most stand between the stored numbers and the value, one more for the scale.
            const double expected = 3 * w.at(row, k);
            check(std::fabs(out[k] - expected) <= 1e-6 * (std::fabs(expected) + 1e-2), "%s kind %d: embedding (%d, %d)",
                  kernels.name, int(kind), row, k);
        }
    }
}

// Quantised forms agree to the bit across instruction sets; so do integer sums, hence results to rounding.
void test_same_quants(const Kernels& kernels) {
    std::mt19937 random(8), same(8);
    ActivationRows x(5, 576, random), y(5, 576, same);
    kernels.quantise(x.view, {0, 5});
    kernels_for(Isa::Portable).quantise(y.view, {0, 5});
    check(std::memcmp(x.view.quants, y.view.quants, 5 * 576) == 0, "%s: quants differ from portable", kernels.name);
    check(std::memcmp(x.view.scales, y.view.scales, 5 * 18 * 4) == 0, "%s: scales differ", kernels.name);
    check(std::memcmp(x.view.isums, y.view.isums, 5 * 18 * 4) == 0, "%s: isums differ", kernels.name);
    check(std::memcmp(x.view.sums, y.view.sums, 5 * 18 * 4) == 0, "%s: sums differ", kernels.name);
}

void test_isa(const Kernels& kernels) {
    test_quantise(kernels);
    test_quantise_faults(kernels);
    test_same_quants(kernels);
    test_mixed_kinds(kernels);
    for (const MatrixKind kind : kKinds) {
        test_against_reference(kernels, kind);
        test_invariance(kernels, kind);
        test_embed(kernels, kind);
    }
}

}  // namespace
}  // namespace sojourn::test

int main() {
    using namespace sojourn;
    for (const Isa isa : test::kIsas) {
        if (is_supported(isa)) {
            test::test_isa(kernels_for(isa));
        } else {
            std::printf("test_linear: instruction set %d is not supported here, left out\n", static_cast<int>(isa));
        }
    }
    return test::report("test_linear");
}
