// Lane operations as functions on arrays, one table per instruction set, so that the test itself is compiled for the
// plain machine. Filled by lanes_{portable,avx2,avx512}.cpp.
#pragma once
#include "native/simd/lanes.h"
#include "native/simd/math.h"

namespace sojourn::test {

struct LanesTable {
    const char* name;
    // out[16] from in[16]
    void (*exp)(float* out, const float* in);
    void (*tanh)(float* out, const float* in);
    void (*silu)(float* out, const float* in);
    void (*gelu_tanh)(float* out, const float* in);
    void (*abs)(float* out, const float* in);
    void (*round)(float* out, const float* in);  // to_ints and back
    // out[16] from a[16] and b[16]
    void (*add)(float* out, const float* a, const float* b);
    void (*sub)(float* out, const float* a, const float* b);
    void (*mul)(float* out, const float* a, const float* b);
    void (*div)(float* out, const float* a, const float* b);
    void (*min)(float* out, const float* a, const float* b);
    void (*max)(float* out, const float* a, const float* b);
    void (*fma)(float* out, const float* a, const float* b, const float* c);
    void (*fnma)(float* out, const float* a, const float* b, const float* c);
    LaneMask (*less)(const float* a, const float* b);
    void (*select)(LaneMask mask, float* out, const float* a, const float* b);
    void (*copy_first)(float* out, const float* in, int count);  // load_first, then a full store
    void (*store_first)(float* out, const float* in, int count);
    float (*reduce_add)(const float* in);
    float (*reduce_max)(const float* in);
    int32_t (*reduce_add_ints)(const float* in);  // of the rounded lanes
    void (*load_halfs)(float* out, const uint16_t* in);
    void (*store_halfs)(uint16_t* out, const float* in);
    void (*store_int8)(int8_t* out, const float* in);
    // out[16] = offset + sum over i in [0, count) of 16 quads w[i][16][4] times x[i][4]
    void (*dot8)(float* out, const uint8_t* w, const int8_t* x, int count, int32_t offset);
    void (*dot4)(float* out, const uint8_t* w, const int8_t* x, int count, int32_t offset);
    void (*nibbles)(float* low_out, float* high_out, const uint8_t* w, const int8_t* x);  // one quad of each half
};

template <Lanes L>
constexpr LanesTable lanes_table(const char* name) {
    using Out = float*;
    using In = const float*;
    return {
        .name = name,
        .exp = [](Out o, In a) { L::store(o, sojourn::exp<L>(L::load(a))); },
        .tanh = [](Out o, In a) { L::store(o, sojourn::tanh<L>(L::load(a))); },
        .silu = [](Out o, In a) { L::store(o, sojourn::silu<L>(L::load(a))); },
        .gelu_tanh = [](Out o, In a) { L::store(o, sojourn::gelu_tanh<L>(L::load(a))); },
        .abs = [](Out o, In a) { L::store(o, L::abs(L::load(a))); },
        .round = [](Out o, In a) { L::store(o, L::to_floats(L::to_ints(L::load(a)))); },
        .add = [](Out o, In a, In b) { L::store(o, L::add(L::load(a), L::load(b))); },
        .sub = [](Out o, In a, In b) { L::store(o, L::sub(L::load(a), L::load(b))); },
        .mul = [](Out o, In a, In b) { L::store(o, L::mul(L::load(a), L::load(b))); },
        .div = [](Out o, In a, In b) { L::store(o, L::div(L::load(a), L::load(b))); },
        .min = [](Out o, In a, In b) { L::store(o, L::min(L::load(a), L::load(b))); },
        .max = [](Out o, In a, In b) { L::store(o, L::max(L::load(a), L::load(b))); },
        .fma = [](Out o, In a, In b, In c) { L::store(o, L::fma(L::load(a), L::load(b), L::load(c))); },
        .fnma = [](Out o, In a, In b, In c) { L::store(o, L::fnma(L::load(a), L::load(b), L::load(c))); },
        .less = [](In a, In b) { return L::less(L::load(a), L::load(b)); },
        .select = [](LaneMask mask, Out o, In a, In b) { L::store(o, L::select(mask, L::load(a), L::load(b))); },
        .copy_first = [](Out o, In a, int count) { L::store(o, L::load_first(a, count)); },
        .store_first = [](Out o, In a, int count) { L::store_first(o, L::load(a), count); },
        .reduce_add = [](In a) { return L::reduce_add(L::load(a)); },
        .reduce_max = [](In a) { return L::reduce_max(L::load(a)); },
        .reduce_add_ints = [](In a) { return L::reduce_add(L::to_ints(L::load(a))); },
        .load_halfs = [](Out o, const uint16_t* h) { L::store(o, L::load_halfs(h)); },
        .store_halfs = [](uint16_t* h, In a) { L::store_halfs(h, L::load(a)); },
        .store_int8 = [](int8_t* o, In a) { L::store_int8(o, L::to_ints(L::load(a))); },
        .dot8 =
            [](Out o, const uint8_t* w, const int8_t* x, int count, int32_t offset) {
                auto sum = L::broadcast_int(offset);
                for (int i = 0; i < count; ++i) sum = L::dot8(sum, L::load_bytes(w + 64 * i), L::load_quad(x + 4 * i));
                L::store(o, L::to_floats(sum));
            },
        .dot4 =
            [](Out o, const uint8_t* w, const int8_t* x, int count, int32_t offset) {
                auto sum = L::begin4(offset);
                for (int i = 0; i < count; ++i) sum = L::dot4(sum, L::load_bytes(w + 64 * i), L::load_quad(x + 4 * i));
                L::store(o, L::to_floats(L::end4(sum, offset)));
            },
        .nibbles =
            [](Out low, Out high, const uint8_t* w, const int8_t* x) {
                const auto bytes = L::load_bytes(w);
                const auto quad = L::load_quad(x);
                L::store(low, L::to_floats(L::dot8(L::broadcast_int(0), L::low_nibbles(bytes), quad)));
                L::store(high, L::to_floats(L::dot8(L::broadcast_int(0), L::high_nibbles(bytes), quad)));
            },
    };
}

}  // namespace sojourn::test
