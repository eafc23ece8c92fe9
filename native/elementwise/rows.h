// Work on single rows: norms, rotary embedding, residuals, storing K and V. Lengths need not be multiples of 16.
#pragma once
#include <cstddef>

#include "native/simd/lanes.h"
#include "native/simd/math.h"

namespace sojourn {

template <class L>
struct Rows {
    using Floats = typename L::Floats;

    // output = x / rms(x) * weight; may be in place. Squares are summed by lane and then across, an order fixed by n.
    static void rms_norm(const float* x, const float* weight, float epsilon, int n, float* output) {
        Floats even = L::zero();
        Floats odd = L::zero();
        int i = 0;
        for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
            const Floats a = L::load(x + i);
            const Floats b = L::load(x + i + kLanes);
            even = L::fma(a, a, even);
            odd = L::fma(b, b, odd);
        }
        for (; i < n; i += kLanes) {
            const Floats a = L::load_first(x + i, n - i);
            even = L::fma(a, a, even);
        }
        const float mean = L::reduce_add(L::add(even, odd)) / static_cast<float>(n);
        const Floats factor = L::broadcast(1.0f / __builtin_sqrtf(mean + epsilon));
        for (i = 0; i + kLanes <= n; i += kLanes) {
            L::store(output + i, L::mul(L::mul(L::load(x + i), factor), L::load(weight + i)));
        }
        if (i < n) {
            const Floats rest = L::mul(L::load_first(x + i, n - i), factor);
            L::store_first(output + i, L::mul(rest, L::load_first(weight + i, n - i)), n - i);
        }
    }

    // x += y
    static void add(float* x, const float* y, int n) {
        int i = 0;
        for (; i + kLanes <= n; i += kLanes) L::store(x + i, L::add(L::load(x + i), L::load(y + i)));
        if (i < n) L::store_first(x + i, L::add(L::load_first(x + i, n - i), L::load_first(y + i, n - i)), n - i);
    }

    // Rotates dimension i with i + half.
    static void rotate(float* head, const float* cosines, const float* sines, int half) {
        for (int i = 0; i < half; i += kLanes) {
            const int count = half - i;
            const Floats c = L::load_first(cosines + i, count);
            const Floats s = L::load_first(sines + i, count);
            const Floats a = L::load_first(head + i, count);
            const Floats b = L::load_first(head + half + i, count);
            L::store_first(head + i, L::fnma(b, s, L::mul(a, c)), count);
            L::store_first(head + half + i, L::fma(a, s, L::mul(b, c)), count);
        }
    }

    // x = cap * tanh(x / cap)
    static void softcap(float* x, float cap, int n) {
        const Floats bound = L::broadcast(cap);
        for (int i = 0; i < n; i += kLanes) {
            const Floats capped = L::mul(bound, tanh<L>(L::div(L::load_first(x + i, n - i), bound)));
            L::store_first(x + i, capped, n - i);
        }
    }

    static void store_sixteen(float* target, Floats x) { L::store(target, x); }
    static void store_sixteen(uint16_t* target, Floats x) { L::store_halfs(target, x); }
    static constexpr float largest(const float*) { return 3.4028234e38f; }
    static constexpr float largest(const uint16_t*) { return 65504.0f; }

    // K and V of one token and head; returns whether all were finite. What is stored is finite whatever came, so that
    // weight 0 times a stale slot is 0: numbers beyond E's range saturate (that is no fault), and the order of the
    // operands makes NaN finite too (that is one). `keys` has its head_dim elements key_stride apart.
    template <class E>
    static bool store_kv(const float* k, const float* v, int head_dim, E* keys, int key_stride, E* values) {
        const Floats high = L::broadcast(largest(keys));
        const Floats low = L::broadcast(-largest(keys));
        // Zeros, until 0 times an infinity or a NaN makes a NaN of one: cheaper than comparing each number.
        Floats key_faults = L::zero();
        Floats value_faults = L::zero();
        for (int d = 0; d < head_dim; d += kLanes) {
            const Floats key = L::load(k + d);
            const Floats value = L::load(v + d);
            key_faults = L::fma(key, L::zero(), key_faults);
            value_faults = L::fma(value, L::zero(), value_faults);
            E sixteen[kLanes];
            store_sixteen(sixteen, L::min(L::max(key, low), high));
            for (int i = 0; i < kLanes; i++) keys[(d + i) * key_stride] = sixteen[i];
            store_sixteen(values + d, L::min(L::max(value, low), high));
        }
        return L::less(L::add(key_faults, value_faults), high) == 0xffff;
    }
    static bool store_kv_f16(const float* k, const float* v, int head_dim, void* keys, int key_stride, void* values) {
        return store_kv(k, v, head_dim, static_cast<uint16_t*>(keys), key_stride, static_cast<uint16_t*>(values));
    }
    static bool store_kv_f32(const float* k, const float* v, int head_dim, void* keys, int key_stride, void* values) {
        return store_kv(k, v, head_dim, static_cast<float*>(keys), key_stride, static_cast<float*>(values));
    }
};

}  // namespace sojourn
