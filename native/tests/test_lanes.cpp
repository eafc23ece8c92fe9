// Every lane operation of every instruction set against plain scalar code.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "native/isa/isa.h"
#include "native/tests/check.h"
#include "native/tests/lanes_table.h"

namespace sojourn::test {

extern const LanesTable kPortableLanes;
#if defined(__x86_64__)
extern const LanesTable kAvx2Lanes;
extern const LanesTable kAvx512Lanes;
#endif

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Largest error of f against g on [from, to], relative to max(|g|, floor).
double worst_error(void (*f)(float*, const float*), double (*g)(double), float from, float to, double floor) {
    double worst = 0;
    const int steps = 100000;
    for (int step = 0; step < steps; step += kLanes) {
        float in[kLanes], out[kLanes];
        for (int i = 0; i < kLanes; ++i) in[i] = from + (to - from) * float(step + i) / float(steps);
        f(out, in);
        for (int i = 0; i < kLanes; ++i) {
            const double expected = g(in[i]);
            const double error = std::fabs(out[i] - expected) / std::max(std::fabs(expected), floor);
            if (!(error <= worst)) worst = error;  // keeps a NaN
        }
    }
    return worst;
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu_tanh(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

void test_functions(const LanesTable& t) {
    const double exp_error = worst_error(t.exp, std::exp, -87, 88, 1e-37);
    const double tanh_error = worst_error(t.tanh, std::tanh, -20, 20, 1);
    const double silu_error = worst_error(t.silu, silu, -30, 30, 1e-2);
    const double gelu_error = worst_error(t.gelu_tanh, gelu_tanh, -12, 12, 1e-2);
    check(exp_error < 3e-7, "%s: exp is off by %g", t.name, exp_error);
    check(tanh_error < 3e-7, "%s: tanh is off by %g", t.name, tanh_error);
    check(silu_error < 1e-6, "%s: silu is off by %g", t.name, silu_error);
    // The argument of the sigmoid reaches 87, and its rounding error is amplified by as much.
    check(gelu_error < 5e-6, "%s: gelu is off by %g", t.name, gelu_error);

    const float in[kLanes] = {0.0f, -0.0f, kNaN, -kInfinity, -87.1f, -1e30f, kInfinity, 89.0f};
    float out[kLanes];
    t.exp(out, in);
    check(out[0] == 1 && out[1] == 1, "%s: exp(0)", t.name);
    check(std::isnan(out[2]), "%s: exp(NaN) is %g", t.name, double{out[2]});
    check(out[3] == 0 && out[4] == 0 && out[5] == 0, "%s: exp of very negative numbers", t.name);
    check(out[6] > 1e38f && out[7] == out[6], "%s: exp of large numbers", t.name);
}

void test_arithmetic(const LanesTable& t) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-3, 3);
    float a[kLanes], b[kLanes], c[kLanes], out[kLanes];
    for (int round = 0; round < 100; ++round) {
        for (int i = 0; i < kLanes; ++i) a[i] = uniform(random), b[i] = uniform(random), c[i] = uniform(random);
        const auto expect = [&](const char* what, auto expected, float tolerance) {
            for (int i = 0; i < kLanes; ++i) {
                check(std::fabs(out[i] - expected(i)) <= tolerance, "%s: %s(%g, %g)", t.name, what, double{a[i]},
                      double{b[i]});
            }
        };
        t.add(out, a, b), expect("add", [&](int i) { return a[i] + b[i]; }, 0);
        t.sub(out, a, b), expect("sub", [&](int i) { return a[i] - b[i]; }, 0);
        t.mul(out, a, b), expect("mul", [&](int i) { return a[i] * b[i]; }, 0);
        t.div(out, a, b), expect("div", [&](int i) { return a[i] / b[i]; }, 0);
        t.min(out, a, b), expect("min", [&](int i) { return std::min(a[i], b[i]); }, 0);
        t.max(out, a, b), expect("max", [&](int i) { return std::max(a[i], b[i]); }, 0);
        t.abs(out, a), expect("abs", [&](int i) { return std::fabs(a[i]); }, 0);
        t.fma(out, a, b, c), expect("fma", [&](int i) { return std::fma(a[i], b[i], c[i]); }, 2e-6f);
        t.fnma(out, a, b, c), expect("fnma", [&](int i) { return std::fma(-a[i], b[i], c[i]); }, 2e-6f);
        const LaneMask mask = t.less(a, b);
        t.select(mask, out, a, c);
        for (int i = 0; i < kLanes; ++i) {
            check((mask >> i & 1) == (a[i] < b[i]), "%s: less", t.name);
            check(out[i] == (a[i] < b[i] ? a[i] : c[i]), "%s: select", t.name);
        }
    }
}

void test_not_a_number(const LanesTable& t) {
    float nan[kLanes], bound[kLanes], out[kLanes];
    std::fill_n(nan, kLanes, kNaN);
    std::fill_n(bound, kLanes, 2.0f);
    t.max(out, nan, bound), check(out[0] == 2 && out[15] == 2, "%s: max(NaN, bound)", t.name);
    t.min(out, nan, bound), check(out[0] == 2 && out[15] == 2, "%s: min(NaN, bound)", t.name);
    t.max(out, bound, nan), check(std::isnan(out[0]) && std::isnan(out[15]), "%s: max(bound, NaN)", t.name);
    t.min(out, bound, nan), check(std::isnan(out[0]) && std::isnan(out[15]), "%s: min(bound, NaN)", t.name);
    check(t.less(nan, bound) == 0 && t.less(bound, nan) == 0, "%s: less with NaN", t.name);
}

void test_parts(const LanesTable& t) {
    float in[kLanes];
    for (int i = 0; i < kLanes; ++i) in[i] = float(i + 1);
    for (int count = -1; count <= kLanes + 1; ++count) {
        float loaded[kLanes], stored[kLanes];
        std::fill_n(stored, kLanes, -1.0f);
        t.copy_first(loaded, in, count);
        t.store_first(stored, in, count);
        for (int i = 0; i < kLanes; ++i) {
            check(loaded[i] == (i < count ? in[i] : 0), "%s: load_first(%d) lane %d", t.name, count, i);
            check(stored[i] == (i < count ? in[i] : -1), "%s: store_first(%d) lane %d", t.name, count, i);
        }
    }
}

// The order is part of the contract, so the sum is compared to the bit.
void test_reductions(const LanesTable& t) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0, 100);
    for (int round = 0; round < 100; ++round) {
        float in[kLanes], sum[kLanes];
        int ints = 0;
        for (int i = 0; i < kLanes; ++i) {
            sum[i] = in[i] = normal(random);
            ints += int(std::nearbyint(in[i]));
        }
        for (int half = 8; half >= 1; half /= 2) {
            for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
        }
        check(t.reduce_add(in) == sum[0], "%s: reduce_add", t.name);
        check(t.reduce_max(in) == *std::max_element(in, in + kLanes), "%s: reduce_max", t.name);
        check(t.reduce_add_ints(in) == ints, "%s: reduce_add of integers", t.name);
    }
}

void test_rounding(const LanesTable& t) {
    for (int start = -2000; start < 2000; start += kLanes) {
        float in[kLanes], out[kLanes];
        for (int i = 0; i < kLanes; ++i) in[i] = float(start + i) * 0.25f;
        t.round(out, in);
        for (int i = 0; i < kLanes; ++i) check(out[i] == std::nearbyint(in[i]), "%s: round(%g)", t.name, double{in[i]});
    }
    for (int start = -128; start < 128; start += kLanes) {
        float in[kLanes];
        int8_t out[kLanes];
        for (int i = 0; i < kLanes; ++i) in[i] = float(start + i);
        t.store_int8(out, in);
        for (int i = 0; i < kLanes; ++i) check(out[i] == start + i, "%s: store_int8(%d)", t.name, start + i);
    }
}

double half_value(int half) {
    const int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

// All halfs, and for each the floats at, just below and just above the tie with its successor.
void test_halfs(const LanesTable& t) {
    for (int start = 0; start < 65536; start += kLanes) {
        uint16_t halfs[kLanes], back[kLanes];
        float floats[kLanes];
        for (int i = 0; i < kLanes; ++i) halfs[i] = uint16_t(start + i);
        t.load_halfs(floats, halfs);
        t.store_halfs(back, floats);
        for (int i = 0; i < kLanes; ++i) {
            const int half = halfs[i], magnitude = half & 0x7fff;
            if (magnitude > 0x7c00) {
                check(std::isnan(floats[i]) && back[i] == (half | 0x200), "%s: NaN %04x came back as %04x", t.name,
                      half, back[i]);
                continue;
            }
            const bool is_infinite = magnitude == 0x7c00;
            check(is_infinite ? std::isinf(floats[i]) : floats[i] == half_value(half), "%s: half %04x", t.name, half);
            check(std::signbit(floats[i]) == (half >> 15 != 0) && back[i] == half, "%s: half %04x back", t.name, half);
        }
        if ((start & 0x7fff) >= 0x7c00) continue;
        float ties[3][kLanes];
        uint16_t rounded[3][kLanes];
        for (int i = 0; i < kLanes; ++i) {
            // Above the largest half, the successor is 2^16 and rounds to infinity.
            const int magnitude = halfs[i] & 0x7fff;
            const double successor = magnitude == 0x7bff ? 65536.0 : half_value(magnitude + 1);
            const float tie = float((half_value(magnitude) + successor) / 2);
            const float sign = halfs[i] & 0x8000 ? -1.0f : 1.0f;
            ties[0][i] = sign * std::nextafter(tie, 0.0f);
            ties[1][i] = sign * tie;
            ties[2][i] = sign * std::nextafter(tie, kInfinity);
        }
        for (int side = 0; side < 3; ++side) t.store_halfs(rounded[side], ties[side]);
        for (int i = 0; i < kLanes; ++i) {
            const int half = halfs[i];
            check(rounded[0][i] == half && rounded[1][i] == half + (half & 1) && rounded[2][i] == half + 1,
                  "%s: rounding near %04x gives %04x %04x %04x", t.name, half, rounded[0][i], rounded[1][i],
                  rounded[2][i]);
        }
    }
    const float extremes[kLanes] = {1e10f,  -1e10f,  kInfinity,   -kInfinity,
                                    1e-10f, -1e-10f, float_of(1), float_of(0x7f800001)};
    uint16_t out[kLanes];
    t.store_halfs(out, extremes);
    check(out[0] == 0x7c00 && out[1] == 0xfc00 && out[2] == 0x7c00 && out[3] == 0xfc00, "%s: overflow", t.name);
    check(out[4] == 0 && out[5] == 0x8000 && out[6] == 0, "%s: underflow", t.name);
    check((out[7] & 0x7e00) == 0x7e00, "%s: a signalling NaN stays a NaN", t.name);
}

// Every u8 with every s8, alone in each of a quad's four places and beside the extremes of its neighbours.
void test_dot8(const LanesTable& t) {
    for (int x = -128; x < 128; ++x) {
        for (int w = 0; w < 256; w += kLanes) {
            for (int place = 0; place < 4; ++place) {
                for (const int neighbour_x : {0, -128, 127}) {
                    uint8_t weights[64];
                    int8_t quad[4];
                    for (int i = 0; i < 64; ++i) weights[i] = uint8_t(i % 4 == place ? w + i / 4 : 255);
                    for (int i = 0; i < 4; ++i) quad[i] = int8_t(i == place ? x : neighbour_x);
                    float out[kLanes];
                    t.dot8(out, weights, quad, 1, -7);
                    bool ok = true;
                    for (int i = 0; i < kLanes; ++i) ok &= out[i] == float(-7 + (w + i) * x + 3 * 255 * neighbour_x);
                    check(ok, "%s: dot8 of %d.. and %d in place %d", t.name, w, x, place);
                }
            }
        }
    }
}

void test_dot4(const LanesTable& t) {
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
        uint8_t weights[8][kLanes][4];
        int8_t x[8][4];
        // The first rounds are the extremes, where 16-bit sums would overflow if they could.
        for (auto& quad : x) {
            for (int8_t& value : quad) value = int8_t(round == 0 ? -128 : round == 1 ? 127 : int(random() % 256) - 128);
        }
        int expected[kLanes];
        std::fill_n(expected, kLanes, 1000);
        for (int i = 0; i < 8; ++i) {
            for (int lane = 0; lane < kLanes; ++lane) {
                for (int k = 0; k < 4; ++k) {
                    weights[i][lane][k] = uint8_t(round < 2 ? 15 : random() % 16);
                    expected[lane] += weights[i][lane][k] * x[i][k];
                }
            }
        }
        float out[kLanes];
        t.dot4(out, &weights[0][0][0], &x[0][0], 8, 1000);
        for (int lane = 0; lane < kLanes; ++lane) check(out[lane] == float(expected[lane]), "%s: dot4", t.name);
    }
}

void test_nibbles(const LanesTable& t) {
    for (int start = 0; start < 256; start += kLanes) {
        for (int place = 0; place < 4; ++place) {
            uint8_t weights[64];
            for (int i = 0; i < 64; ++i) weights[i] = uint8_t(start + i / 4);
            int8_t quad[4] = {};
            quad[place] = 1;
            float low[kLanes], high[kLanes];
            t.nibbles(low, high, weights, quad);
            for (int i = 0; i < kLanes; ++i) {
                check(low[i] == float((start + i) & 15) && high[i] == float((start + i) >> 4), "%s: nibbles", t.name);
            }
        }
    }
}

void test_lanes(const LanesTable& t) {
    test_functions(t);
    test_arithmetic(t);
    test_not_a_number(t);
    test_parts(t);
    test_reductions(t);
    test_rounding(t);
    test_halfs(t);
    test_dot8(t);
    test_dot4(t);
    test_nibbles(t);
}

}  // namespace
}  // namespace sojourn::test

int main() {
    using namespace sojourn;
    test::test_lanes(test::kPortableLanes);
#if defined(__x86_64__)
    if (is_supported(Isa::Avx2)) test::test_lanes(test::kAvx2Lanes);
    if (is_supported(Isa::Avx512)) test::test_lanes(test::kAvx512Lanes);
#endif
    return test::report("test_lanes");
}
