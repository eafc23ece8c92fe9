// Philox4x64-10 (Salmon et al., 2011), as numpy.random.Philox computes it: counter-based, so a draw is a pure function
// of (seed, position) and needs no state.
#pragma once
#include <array>
#include <cstdint>

namespace sojourn {

namespace philox {

using Block = std::array<uint64_t, 4>;
using Key = std::array<uint64_t, 2>;
__extension__ using Wide = unsigned __int128;

inline Block scramble(const Block& x, const Key& key) {
    const auto a = static_cast<Wide>(0xD2E7470EE14C6C93ull) * x[0];
    const auto b = static_cast<Wide>(0xCA5A826395121157ull) * x[2];
    return {static_cast<uint64_t>(b >> 64) ^ x[1] ^ key[0], static_cast<uint64_t>(b),
            static_cast<uint64_t>(a >> 64) ^ x[3] ^ key[1], static_cast<uint64_t>(a)};
}

inline Block generate(Block counter, Key key) {
    for (int round = 0; round < 10; round++) {
        if (round > 0) key = {key[0] + 0x9E3779B97F4A7C15ull, key[1] + 0xBB67AE8584CAA73Bull};
        counter = scramble(counter, key);
    }
    return counter;
}

}  // namespace philox

// A uniform in [0, 1): equals numpy.random.Generator(numpy.random.Philox(key=seed, counter=position)).random(), which
// steps its counter once before it draws.
inline double uniform_at(uint64_t seed, int64_t position) {
    const auto block = philox::generate({static_cast<uint64_t>(position) + 1, 0, 0, 0}, {seed, 0});
    return static_cast<double>(block[0] >> 11) * 0x1.0p-53;
}

}  // namespace sojourn
