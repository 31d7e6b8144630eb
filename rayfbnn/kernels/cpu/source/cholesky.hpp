// The Cholesky factor of one symmetric matrix in double, its inverse, and solutions of linear systems.
#ifndef RAYFBNN_CHOLESKY_HPP
#define RAYFBNN_CHOLESKY_HPP

#include <string.h>

#include "memory.hpp"
#include "rows.hpp"

namespace RAYFBNN_NAMESPACE {

// Rows are padded to whole packs, with zeros behind place n - 1.
struct Cholesky {
    static constexpr int WD = Lane<PackDouble>::width;
    const int n, padded;  // padded: the doubles of a row
    Buffer<double> factor;   // (n, padded): takes the upper triangle of A, which becomes U with A = U'U
    Buffer<double> half;     // (n, padded): U'^-1
    Buffer<double> inverse;  // (n, padded): A^-1
    Buffer<double> solved;   // (n,)

    explicit Cholesky(int n)
        : n(n),
          padded((n + WD - 1) / WD * WD),
          factor(long(n) * padded),
          half(long(n) * padded),
          inverse(long(n) * padded),
          solved(n) {}

    static void subtract(double* to, double factor, const double* from, int begin, int end) {
        for (int k = begin / WD; k < (end + WD - 1) / WD; ++k)
            reinterpret_cast<PackDouble*>(to)[k] -=
                splat<PackDouble>(factor) * reinterpret_cast<const PackDouble*>(from)[k];
    }

    // Computes U and U'^-1, and returns log|A| if it is wanted. A matrix that is not positive definite gives NaN.
    double factorise(bool wants_log_determinant) {
        double log_determinant = 0;
        for (int k = 0; k < n; ++k) {
            double* row = factor + long(k) * padded;
            const double pivot = row[k] > 0 ? __builtin_sqrt(row[k]) : __builtin_nan("");
            if (wants_log_determinant) log_determinant += 2 * RAYFBNN_LOG(pivot);
            const double scale = 1 / pivot;
            for (int j = k; j < n; ++j) row[j] *= scale;
            for (int i = k + 1; i < n; ++i) subtract(factor + long(i) * padded, row[i], row, i, n);
        }
        for (int i = 0; i < n; ++i) {
            double* row = half + long(i) * padded;
            for (int j = 0; j < padded; ++j) row[j] = 0;
            row[i] = 1;
            for (int k = 0; k < i; ++k)
                subtract(row, factor[long(k) * padded + i], half + long(k) * padded, 0, k + 1);
            const double scale = 1 / factor[long(i) * padded + i];
            for (int j = 0; j <= i; ++j) row[j] *= scale;
        }
        return log_determinant;
    }

    void invert() {
        memset(inverse, 0, long(n) * padded * sizeof(double));
        for (int k = 0; k < n; ++k)
            for (int i = 0; i <= k; ++i)
                subtract(
                    inverse + long(i) * padded, -half[long(k) * padded + i], half + long(k) * padded, 0, k + 1);
    }

    // x = scale A^-1 b, computed as U^-1 (U'^-1 b).
    void solve(const double* b, double scale, double* x) const {
        for (int i = 0; i < n; ++i) {
            double total = 0;
            for (int j = 0; j <= i; ++j) total += half[long(i) * padded + j] * b[j];
            solved[i] = scale * total;
            x[i] = 0;
        }
        for (int k = 0; k < n; ++k)
            for (int i = 0; i <= k; ++i) x[i] += half[long(k) * padded + i] * solved[k];
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
