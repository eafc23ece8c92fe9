// Sixteen lanes as four of the compiler's 4-lane vectors (GCC and Clang; every 64-bit target has such registers).
// The reference the other units are tested against; little endian. Compile with -ffp-contract=off.
#pragma once
#include <cstddef>

#include "native/simd/lanes.h"

namespace sojourn {

struct Portable {
    using Float4 = float __attribute__((vector_size(16)));
    using Int4 = int32_t __attribute__((vector_size(16)));
    using Uint4 = uint32_t __attribute__((vector_size(16)));
    using Short8 = int16_t __attribute__((vector_size(16)));
    using Ushort8 = uint16_t __attribute__((vector_size(16)));
    using Byte16 = uint8_t __attribute__((vector_size(16)));

    struct Floats {
        Float4 part[4];
    };
    struct Ints {
        Int4 part[4];
    };
    // The register file, in units of sixteen lanes: what bounds a kernel's tile.
    static constexpr int kRegisters = 4;
    struct Bytes {
        Byte16 part[4];
    };
    // The four bytes widened to 16 bits, as the multiplier of a lane's even bytes (0, 2) and of its odd ones (1, 3).
    struct Quad {
        Short8 even, odd;
    };
    // Pairs of products in 16 bits: sixteen times 15 * 128 is 30720, so a group of 32 cannot overflow.
    struct Sum4 {
        Short8 part[4];
    };

    static Floats load(const float* p) {
        Floats a;
        __builtin_memcpy(&a, p, sizeof a);
        return a;
    }
    static Floats load_first(const float* p, int count) {
        float lanes[kLanes] = {};
        for (int i = 0; i < kLanes && i < count; ++i) lanes[i] = p[i];
        return load(lanes);
    }
    static void store(float* p, Floats a) { __builtin_memcpy(p, &a, sizeof a); }
    static void store_first(float* p, Floats a, int count) {
        for (int i = 0; i < kLanes && i < count; ++i) p[i] = a.part[i / 4][i % 4];
    }
    static Floats load_halfs(const uint16_t* p) {
        return each<Floats>([&](int i) {
            Uint4 half{};
            for (int lane = 0; lane < 4; ++lane) half[lane] = p[4 * i + lane];
            return half_to_float(half);
        });
    }
    static void store_halfs(uint16_t* p, Floats a) {
        for (int i = 0; i < 4; ++i) {
            const Uint4 half = float_to_half(a.part[i]);
            for (int lane = 0; lane < 4; ++lane) p[4 * i + lane] = static_cast<uint16_t>(half[lane]);
        }
    }
    static void store_int8(int8_t* p, Ints a) {
        for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.part[i / 4][i % 4]);
    }

    static Floats zero() { return broadcast(0.0f); }
    static Floats broadcast(float x) {
        return each<Floats>([&](int) { return Float4{x, x, x, x}; });
    }

    static Floats add(Floats a, Floats b) {
        return each<Floats>([&](int i) { return a.part[i] + b.part[i]; });
    }
    static Floats sub(Floats a, Floats b) {
        return each<Floats>([&](int i) { return a.part[i] - b.part[i]; });
    }
    static Floats mul(Floats a, Floats b) {
        return each<Floats>([&](int i) { return a.part[i] * b.part[i]; });
    }
    static Floats div(Floats a, Floats b) {
        return each<Floats>([&](int i) { return a.part[i] / b.part[i]; });
    }
    // Two roundings: without hardware for it, a fused operation is a library call per lane.
    static Floats fma(Floats a, Floats b, Floats c) { return add(mul(a, b), c); }
    static Floats fnma(Floats a, Floats b, Floats c) { return sub(c, mul(a, b)); }
    static Floats abs(Floats a) {
        return each<Floats>([&](int i) { return as<Float4>(as<Uint4>(a.part[i]) & 0x7fffffffu); });
    }
    static Floats min(Floats a, Floats b) {
        return each<Floats>([&](int i) { return a.part[i] < b.part[i] ? a.part[i] : b.part[i]; });
    }
    static Floats max(Floats a, Floats b) {
        return each<Floats>([&](int i) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
    }

    static LaneMask less(Floats a, Floats b) {
        unsigned mask = 0;
        for (int i = 0; i < kLanes; ++i) mask |= unsigned{a.part[i / 4][i % 4] < b.part[i / 4][i % 4]} << i;
        return static_cast<LaneMask>(mask);
    }
    static Floats select(LaneMask mask, Floats a, Floats b) {
        return each<Floats>([&](int i) {
            const Int4 bits = {1, 2, 4, 8};
            const int four = mask >> (4 * i);
            return (Int4{four, four, four, four} & bits) != 0 ? a.part[i] : b.part[i];
        });
    }

    static float reduce_add(Floats a) {
        const Float4 four = (a.part[0] + a.part[2]) + (a.part[1] + a.part[3]);
        return (four[0] + four[2]) + (four[1] + four[3]);
    }
    static float reduce_max(Floats a) {
        const Float4 even = a.part[0] > a.part[2] ? a.part[0] : a.part[2];
        const Float4 odd = a.part[1] > a.part[3] ? a.part[1] : a.part[3];
        const Float4 four = even > odd ? even : odd;
        const float two[2] = {four[0] > four[2] ? four[0] : four[2], four[1] > four[3] ? four[1] : four[3]};
        return two[0] > two[1] ? two[0] : two[1];
    }
    static int32_t reduce_add(Ints a) {
        const Int4 four = (a.part[0] + a.part[2]) + (a.part[1] + a.part[3]);
        return (four[0] + four[2]) + (four[1] + four[3]);
    }

    static Ints broadcast_int(int32_t x) {
        return each<Ints>([&](int) { return Int4{x, x, x, x}; });
    }
    static Ints add(Ints a, Ints b) {
        return each<Ints>([&](int i) { return a.part[i] + b.part[i]; });
    }
    static Floats to_floats(Ints a) {
        return each<Floats>([&](int i) { return __builtin_convertvector(a.part[i], Float4); });
    }
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the mantissa.
    static Ints to_ints(Floats a) {
        const float magic = 12582912.0f;
        return each<Ints>([&](int i) { return as<Int4>(a.part[i] + magic) - 0x4b400000; });
    }
    static Floats power_of_two(Ints n) {
        return each<Floats>([&](int i) { return as<Float4>((n.part[i] + 127) << 23); });
    }

    static Bytes load_bytes(const uint8_t* p) {
        Bytes a;
        __builtin_memcpy(&a, p, sizeof a);
        return a;
    }
    static Bytes low_nibbles(Bytes a) {
        return each<Bytes>([&](int i) { return a.part[i] & 15; });
    }
    static Bytes high_nibbles(Bytes a) {
        return each<Bytes>([&](int i) { return a.part[i] >> 4; });
    }
    static Quad load_quad(const int8_t* p) {
        const int16_t x0 = p[0], x1 = p[1], x2 = p[2], x3 = p[3];
        return {Short8{x0, x2, x0, x2, x0, x2, x0, x2}, Short8{x1, x3, x1, x3, x1, x3, x1, x3}};
    }
    // 255 * 128 fits in 16 bits with sign, so products are exact there; their sums need 32.
    static Ints dot8(Ints sum, Bytes w, Quad x) {
        return each<Ints>([&](int i) {
            const Ushort8 pairs = as<Ushort8>(w.part[i]);
            const Short8 even = as<Short8>(pairs & 255) * x.even;
            const Short8 odd = as<Short8>(pairs >> 8) * x.odd;
            return sum.part[i] + add_neighbours(even) + add_neighbours(odd);
        });
    }

    static Sum4 begin4(int32_t) { return {}; }
    static Sum4 dot4(Sum4 sum, Bytes w, Quad x) {
        return each<Sum4>([&](int i) {
            const Ushort8 pairs = as<Ushort8>(w.part[i]);
            return sum.part[i] + as<Short8>(pairs & 255) * x.even + as<Short8>(pairs >> 8) * x.odd;
        });
    }
    static Ints end4(Sum4 sum, int32_t offset) {
        return each<Ints>([&](int i) { return add_neighbours(sum.part[i]) + offset; });
    }

private:
    template <class To, class From>
    static To as(From from) {
        static_assert(sizeof(To) == sizeof(From));
        To to;
        __builtin_memcpy(&to, &from, sizeof to);
        return to;
    }
    template <class Vector, class Part>
    static Vector each(Part part) {
        return {{part(0), part(1), part(2), part(3)}};
    }

    static Int4 add_neighbours(Short8 a) {
        const Int4 pairs = as<Int4>(a);
        return (as<Int4>(as<Uint4>(pairs) << 16) >> 16) + (pairs >> 16);
    }

    // Exponents move by the difference of the biases; the two ends of the range (denormals; infinity and NaN) are
    // fixed up afterwards, without branches.
    static Float4 half_to_float(Uint4 half) {
        const Uint4 shifted = (half & 0x7fffu) << 13;
        const Uint4 exponent = shifted & 0x0f800000u;
        const Uint4 normal = shifted + (112u << 23);
        const Uint4 quiet = (shifted & 0x007fffffu) != 0 ? Uint4{} + 0x00400000u : Uint4{};
        const Uint4 special = (shifted + (224u << 23)) | quiet;
        const Float4 denormal = as<Float4>(shifted + (113u << 23)) - 0x1p-14f;
        Uint4 bits = exponent == 0x0f800000u ? special : normal;
        bits = exponent == 0 ? as<Uint4>(denormal) : bits;
        return as<Float4>(bits | (half & 0x8000u) << 16);
    }
    static Uint4 float_to_half(Float4 value) {
        const Uint4 all = as<Uint4>(value);
        const Uint4 bits = all & 0x7fffffffu;
        // Half of the last place kept, less one, plus the last bit kept: ties go to even.
        const Uint4 normal = (bits - (112u << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
        // Adding 0.5 aligns the last place of a denormal half with that of the sum, so the addition rounds.
        const Uint4 denormal = as<Uint4>(as<Float4>(bits) + 0.5f) - 0x3f000000u;
        const Uint4 nan = 0x7e00u | ((bits >> 13) & 0x3ffu);
        Uint4 half = bits < (113u << 23) ? denormal : normal;
        half = bits >= (143u << 23) ? Uint4{} + 0x7c00u : half;
        half = bits > 0x7f800000u ? nan : half;
        return half | (all >> 16 & 0x8000u);
    }
};

static_assert(Lanes<Portable>);

}  // namespace sojourn
