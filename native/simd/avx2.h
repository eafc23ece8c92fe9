// Sixteen lanes in two 256-bit registers. Needs -mavx2 -mfma -mf16c -ffp-contract=off.
#pragma once
#include <immintrin.h>

#include "native/simd/lanes.h"

namespace sojourn {

struct Avx2 {
    struct Floats {
        __m256 lo, hi;
    };
    struct Ints {
        __m256i lo, hi;
    };
    // The register file, in units of sixteen lanes: what bounds a kernel's tile.
    static constexpr int kRegisters = 8;
    struct Bytes {
        __m256i lo, hi;
    };
    struct Quad {
        __m256i bits;
    };
    // Pairs of products in 16 bits: eight times 2 * 15 * 128 is 30720, so a group of 32 cannot overflow.
    struct Sum4 {
        __m256i lo, hi;
    };

    static Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static Floats load_first(const float* p, int count) {
        const __m256 lo = _mm256_maskload_ps(p, first_of_eight(count));
        return {lo, count > 8 ? _mm256_maskload_ps(p + 8, first_of_eight(count - 8)) : _mm256_setzero_ps()};
    }
    static void store(float* p, Floats a) {
        _mm256_storeu_ps(p, a.lo);
        _mm256_storeu_ps(p + 8, a.hi);
    }
    static void store_first(float* p, Floats a, int count) {
        _mm256_maskstore_ps(p, first_of_eight(count), a.lo);
        if (count > 8) _mm256_maskstore_ps(p + 8, first_of_eight(count - 8), a.hi);
    }
    static Floats load_halfs(const uint16_t* p) {
        const auto* eights = reinterpret_cast<const __m128i*>(p);
        return {_mm256_cvtph_ps(_mm_loadu_si128(eights)), _mm256_cvtph_ps(_mm_loadu_si128(eights + 1))};
    }
    static void store_halfs(uint16_t* p, Floats a) {
        auto* eights = reinterpret_cast<__m128i*>(p);
        _mm_storeu_si128(eights, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128(eights + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
    }
    static void store_int8(int8_t* p, Ints a) {
        // packs works within 128-bit halves, so the quarters come out as lo0 hi0 lo1 hi1 and are put back in order.
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), _MM_SHUFFLE(3, 1, 2, 0));
        const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    }

    static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Floats broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }

    static Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
    static Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
    static Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
    static Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
    static Floats fma(Floats a, Floats b, Floats c) {
        return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
    }
    static Floats fnma(Floats a, Floats b, Floats c) {
        return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
    }
    static Floats abs(Floats a) {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
    }
    static Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
    static Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }

    static LaneMask less(Floats a, Floats b) {
        const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ));
        const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
        return static_cast<LaneMask>(lo | hi << 8);
    }
    static Floats select(LaneMask mask, Floats a, Floats b) {
        return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(spread(mask))),
                _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(spread(mask >> 8)))};
    }

    static float reduce_add(Floats a) {
        const __m256 eight = _mm256_add_ps(a.lo, a.hi);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    static float reduce_max(Floats a) {
        const __m256 eight = _mm256_max_ps(a.lo, a.hi);
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }
    static int32_t reduce_add(Ints a) {
        const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
        const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
        return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, _MM_SHUFFLE(2, 3, 0, 1))));
    }

    static Ints broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
    static Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
    static Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
    static Ints to_ints(Floats a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
    static Floats power_of_two(Ints n) {
        const __m256i bias = _mm256_set1_epi32(127);
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23))};
    }

    static Bytes load_bytes(const uint8_t* p) {
        const auto* halves = reinterpret_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
    }
    static Bytes low_nibbles(Bytes a) {
        const __m256i mask = _mm256_set1_epi8(15);
        return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
    }
    static Bytes high_nibbles(Bytes a) {
        return low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
    }
    static Quad load_quad(const int8_t* p) {
        int32_t four;
        __builtin_memcpy(&four, p, sizeof four);
        return {_mm256_set1_epi32(four)};
    }
    // maddubs would saturate above 127, so even and odd bytes are widened to 16 bits and go through madd, which is
    // exact.
    static Ints dot8(Ints sum, Bytes w, Quad x) {
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x.bits, 8), 8);
        const __m256i odd = _mm256_srai_epi16(x.bits, 8);
        return {add_even_odd(sum.lo, w.lo, even, odd), add_even_odd(sum.hi, w.hi, even, odd)};
    }

    static Sum4 begin4(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static Sum4 dot4(Sum4 sum, Bytes w, Quad x) {
        return {_mm256_add_epi16(sum.lo, _mm256_maddubs_epi16(w.lo, x.bits)),
                _mm256_add_epi16(sum.hi, _mm256_maddubs_epi16(w.hi, x.bits))};
    }
    static Ints end4(Sum4 sum, int32_t offset) {
        const __m256i ones = _mm256_set1_epi16(1);
        return add({_mm256_madd_epi16(sum.lo, ones), _mm256_madd_epi16(sum.hi, ones)}, broadcast_int(offset));
    }

private:
    // All bits of lane i set where bit i of the low byte is.
    static __m256i spread(int mask) {
        const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask), bits), bits);
    }
    static __m256i first_of_eight(int count) { return spread(first_lanes(count)); }
    static __m256i add_even_odd(__m256i sum, __m256i w, __m256i even, __m256i odd) {
        const __m256i low_bytes = _mm256_and_si256(w, _mm256_set1_epi16(255));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low_bytes, even));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_srli_epi16(w, 8), odd));
    }
};

static_assert(Lanes<Avx2>);

}  // namespace sojourn
