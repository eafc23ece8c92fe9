// How weights of a vocabulary are summed: by blocks, so that a draw finds its place without walking every token.
#pragma once

namespace sojourn {

inline constexpr int kSumBlock = 1024;

}  // namespace sojourn
