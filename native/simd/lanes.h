// What a kernel may ask of a vector unit: sixteen float lanes, sixteen int32 lanes, and 64 bytes read as sixteen quads.
//
// Kernels are templates over a type L that satisfies `Lanes`: Portable, Avx2 or Avx512, one header each. L has only
// static members and every piece of code that depends on the instruction set is a member of L or a template over it,
// so that translation units compiled with different flags never share a symbol. For the same reason kernels call no
// inline function of the standard library (std::min, std::fma): the linker could keep the copy with the wrong flags.
//
// Compile every file that includes one of those headers with -ffp-contract=off: compilers otherwise fuse intrinsics
// too, and results would depend on how a tile happened to be unrolled.
#pragma once
#include <concepts>
#include <cstdint>

namespace sojourn {

inline constexpr int kLanes = 16;

// A set of lanes: bit i is lane i. The same type everywhere, so that callers can compute masks with integers.
using LaneMask = uint16_t;

// The lanes below `count`; none for count <= 0, all for count >= 16.
[[gnu::always_inline]] constexpr LaneMask first_lanes(int count) {
    return count >= kLanes ? LaneMask{0xffff} : count <= 0 ? LaneMask{0} : static_cast<LaneMask>((1u << count) - 1);
}

template <class L>
concept Lanes = requires(typename L::Floats f, typename L::Ints n, typename L::Bytes b, typename L::Quad q,
                         typename L::Sum4 s, float* floats, const float* in, uint16_t* halfs, int8_t* small,
                         const uint8_t* bytes, LaneMask mask, int count) {
    // Memory; nothing needs alignment. load_first fills the other lanes with zero, store_first leaves them alone.
    { L::load(in) } -> std::same_as<typename L::Floats>;
    { L::load_first(in, count) } -> std::same_as<typename L::Floats>;
    L::store(floats, f);
    L::store_first(floats, f, count);
    { L::load_halfs(halfs) } -> std::same_as<typename L::Floats>;
    L::store_halfs(halfs, f);  // rounds to nearest even, as F16C does
    L::store_int8(small, n);   // lanes must lie in [-128, 127]

    { L::zero() } -> std::same_as<typename L::Floats>;
    { L::broadcast(1.0f) } -> std::same_as<typename L::Floats>;

    // Arithmetic. fma(a, b, c) = a * b + c and fnma(a, b, c) = c - a * b, fused where the hardware fuses.
    { L::add(f, f) } -> std::same_as<typename L::Floats>;
    { L::sub(f, f) } -> std::same_as<typename L::Floats>;
    { L::mul(f, f) } -> std::same_as<typename L::Floats>;
    { L::div(f, f) } -> std::same_as<typename L::Floats>;
    { L::fma(f, f, f) } -> std::same_as<typename L::Floats>;
    { L::fnma(f, f, f) } -> std::same_as<typename L::Floats>;
    { L::abs(f) } -> std::same_as<typename L::Floats>;
    // a < b ? a : b and a > b ? a : b: the SECOND operand where either is NaN. So max(x, bound) maps a NaN x to the
    // bound, and max(bound, x) lets it through.
    { L::min(f, f) } -> std::same_as<typename L::Floats>;
    { L::max(f, f) } -> std::same_as<typename L::Floats>;

    // Choice: select(mask, a, b) takes a where the bit is set. Comparisons with NaN are false.
    { L::less(f, f) } -> std::same_as<LaneMask>;
    { L::select(mask, f, f) } -> std::same_as<typename L::Floats>;

    // Reductions in one fixed order: lanes 8 apart, then 4, 2, 1.
    { L::reduce_add(f) } -> std::same_as<float>;
    { L::reduce_max(f) } -> std::same_as<float>;
    { L::reduce_add(n) } -> std::same_as<int32_t>;

    // Integers. to_ints rounds to nearest even and needs |lane| < 2^22; power_of_two(n) needs n in [-126, 127].
    { L::broadcast_int(count) } -> std::same_as<typename L::Ints>;
    { L::add(n, n) } -> std::same_as<typename L::Ints>;
    { L::to_floats(n) } -> std::same_as<typename L::Floats>;
    { L::to_ints(f) } -> std::same_as<typename L::Ints>;
    { L::power_of_two(n) } -> std::same_as<typename L::Floats>;

    // Int8 products. A Quad is four signed bytes, ready to meet every lane's four unsigned bytes. dot8 is exact for
    // all of u8 x s8.
    { L::load_bytes(bytes) } -> std::same_as<typename L::Bytes>;
    { L::low_nibbles(b) } -> std::same_as<typename L::Bytes>;
    { L::high_nibbles(b) } -> std::same_as<typename L::Bytes>;
    { L::load_quad(small) } -> std::same_as<typename L::Quad>;
    { L::dot8(n, b, q) } -> std::same_as<typename L::Ints>;
    // offset + the sum of up to eight products of bytes <= 15. `offset` is given twice because some units start from
    // it and others add it at the end.
    { L::begin4(count) } -> std::same_as<typename L::Sum4>;
    { L::dot4(s, b, q) } -> std::same_as<typename L::Sum4>;
    { L::end4(s, count) } -> std::same_as<typename L::Ints>;
};

}  // namespace sojourn
