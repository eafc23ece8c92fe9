// Owners of random packed matrices and activations, and what they mean in double: shared by tests and the benchmark.
#pragma once
#include <cmath>
#include <cstdint>
#include <new>
#include <random>
#include <vector>

#include "native/linear/linear.h"

namespace sojourn::test {

// Positive normal halfs only: 2^exponent * (1 + mantissa / 1024).
inline double half_value(uint16_t half) {
    const double magnitude = std::ldexp(1024.0 + (half & 0x3ff), (half >> 10 & 31) - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

// Vectors whose memory starts at a cache line, as packed.py promises of every array.
template <class T>
struct LineAllocator {
    using value_type = T;
    LineAllocator() = default;
    template <class U>
    LineAllocator(const LineAllocator<U>&) {}
    T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64})); }
    void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t{64}); }
    bool operator==(const LineAllocator&) const { return true; }
};

template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

// A matrix in the layout of packed.py, filled with random quants and scales; padding rows hold what real ones could.
class PackedMatrix {
public:
    PackedMatrix(MatrixKind kind, int rows, int cols, std::mt19937& random) {
        matrix.kind = kind;
        matrix.rows = rows;
        matrix.cols = cols;
        const size_t padded = size_t{16} * num_blocks(matrix);
        if (kind == MatrixKind::F32) {
            std::normal_distribution<float> normal(0.0f, 0.05f);
            values_.resize(padded * cols);
            for (float& value : values_) value = normal(random);
            matrix.data = values_.data();
            return;
        }
        const size_t bytes = kind == MatrixKind::Q8 ? padded * cols : padded * cols / 2;
        quants_.resize(bytes);
        // Q8 stores -127..127 as 1..255.
        for (uint8_t& quant : quants_) {
            quant = static_cast<uint8_t>(kind == MatrixKind::Q8 ? 1 + random() % 255 : random());
        }
        scales_.resize(padded * cols / kGroup);
        for (uint16_t& scale : scales_) scale = static_cast<uint16_t>(5 << 10 | random() % 1024);
        if (kind == MatrixKind::Q4M) mins_.resize(scales_.size());
        for (uint16_t& min : mins_) min = static_cast<uint16_t>(0x8000 | 7 << 10 | random() % 1024);
        matrix.data = quants_.data();
        matrix.scales = scales_.data();
        matrix.mins = kind == MatrixKind::Q4M ? mins_.data() : nullptr;
    }
    PackedMatrix(const PackedMatrix&) = delete;
    PackedMatrix& operator=(const PackedMatrix&) = delete;
    PackedMatrix(PackedMatrix&&) = default;  // vectors keep their memory when they move

    size_t bytes() const { return values_.size() * 4 + quants_.size() + (scales_.size() + mins_.size()) * 2; }

    // The exact value of one element, straight from the layout's description.
    double at(int row, int col) const {
        const size_t block = row / 16, lane = row % 16, groups = matrix.cols / 32, group = col / 32, k = col % 32;
        if (matrix.kind == MatrixKind::F32) return values_[(block * matrix.cols + col) * 16 + lane];
        const size_t unit = block * groups + group;
        const double scale = half_value(scales_[unit * 16 + lane]);
        if (matrix.kind == MatrixKind::Q8) {
            return (quants_[((unit * 8 + k / 4) * 16 + lane) * 4 + k % 4] - 128) * scale;
        }
        const uint8_t byte = quants_[((unit * 4 + k % 16 / 4) * 16 + lane) * 4 + k % 4];
        const int nibble = k < 16 ? byte & 15 : byte >> 4;
        if (matrix.kind == MatrixKind::Q4) return (nibble - 8) * scale;
        return nibble * scale + half_value(mins_[unit * 16 + lane]);
    }

    Matrix matrix;

private:
    LineVector<float> values_;
    LineVector<uint8_t> quants_;
    LineVector<uint16_t> scales_, mins_;
};

// Memory for activations; values are random, the quantised form is for a kernel to fill.
class ActivationRows {
public:
    ActivationRows(int rows, int cols, std::mt19937& random)
        : values_(size_t(rows) * cols),
          quants_(values_.size()),
          scales_(values_.size() / kGroup),
          sums_(scales_.size()),
          isums_(scales_.size()) {
        std::normal_distribution<float> normal(0.0f, 1.0f);
        for (float& value : values_) value = normal(random);
        view = {.cols = cols,
                .values = values_.data(),
                .quants = quants_.data(),
                .scales = scales_.data(),
                .isums = isums_.data(),
                .sums = sums_.data()};
    }
    ActivationRows(const ActivationRows&) = delete;
    ActivationRows& operator=(const ActivationRows&) = delete;

    float& value(int row, int col) { return values_[size_t(row) * view.cols + col]; }

    // What a kernel of this kind reads at (row, col).
    double at(MatrixKind kind, int row, int col) const {
        const size_t i = size_t(row) * view.cols + col;
        return kind == MatrixKind::F32 ? double{values_[i]} : quants_[i] * double{scales_[i / kGroup]};
    }

    Activations view;

private:
    LineVector<float> values_;
    LineVector<int8_t> quants_;
    LineVector<float> scales_, sums_;
    LineVector<int32_t> isums_;
};

}  // namespace sojourn::test
