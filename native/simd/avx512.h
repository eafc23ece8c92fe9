// Sixteen lanes in one 512-bit register, with VNNI. Needs -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
// -mavx2 -mfma -mf16c -ffp-contract=off.
#pragma once
#include <immintrin.h>

#include "native/simd/lanes.h"

namespace sojourn {

struct Avx512 {
    using Floats = __m512;
    using Ints = __m512i;
    // The register file, in units of sixteen lanes: what bounds a kernel's tile.
    static constexpr int kRegisters = 32;
    struct Bytes {
        __m512i bits;
    };
    struct Quad {
        __m512i bits;
    };
    using Sum4 = Ints;

    static Floats load(const float* p) { return _mm512_loadu_ps(p); }
    static Floats load_first(const float* p, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
    static void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
    static void store_first(float* p, Floats a, int count) { _mm512_mask_storeu_ps(p, first_lanes(count), a); }
    static Floats load_halfs(const uint16_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static void store_halfs(uint16_t* p, Floats a) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    }
    static void store_int8(int8_t* p, Ints a) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
    }

    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats broadcast(float x) { return _mm512_set1_ps(x); }

    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
    static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
    static Floats abs(Floats a) { return _mm512_abs_ps(a); }
    static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
    static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }

    static LaneMask less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
    static Floats select(LaneMask mask, Floats a, Floats b) { return _mm512_mask_blend_ps(mask, b, a); }

    static float reduce_add(Floats a) {
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    static float reduce_max(Floats a) {
        const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }
    static int32_t reduce_add(Ints a) { return _mm512_reduce_add_epi32(a); }

    static Ints broadcast_int(int32_t x) { return _mm512_set1_epi32(x); }
    static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
    static Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
    static Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
    static Floats power_of_two(Ints n) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
    }

    static Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
    static Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.bits, _mm512_set1_epi8(15))}; }
    static Bytes high_nibbles(Bytes a) { return low_nibbles({_mm512_srli_epi16(a.bits, 4)}); }
    static Quad load_quad(const int8_t* p) {
        int32_t four;
        __builtin_memcpy(&four, p, sizeof four);
        return {_mm512_set1_epi32(four)};
    }
    static Ints dot8(Ints sum, Bytes w, Quad x) { return _mm512_dpbusd_epi32(sum, w.bits, x.bits); }

    static Sum4 begin4(int32_t offset) { return broadcast_int(offset); }
    static Sum4 dot4(Sum4 sum, Bytes w, Quad x) { return dot8(sum, w, x); }
    static Ints end4(Sum4 sum, int32_t) { return sum; }
};

static_assert(Lanes<Avx512>);

}  // namespace sojourn
