// Survival times under hazards that are constant in pieces: rayfbnn/model/likelihood/hazard.py has the formulas.
#ifndef RAYFBNN_TIMES_HPP
#define RAYFBNN_TIMES_HPP

#include "block.hpp"

namespace RAYFBNN_NAMESPACE {

constexpr double MOST_LOG_HAZARD = 340;  // as in hazard.py

RAYFBNN_INLINE PackDouble bounded_log_hazard(PackDouble v) {
    typedef Lane<PackDouble> D;
    return D::at_most(D::at_least(v, -MOST_LOG_HAZARD), MOST_LOG_HAZARD);
}

// The mean time and the mean square of the time, added up piece by piece.
struct TimeMoments {
    PackDouble before = {}, mean = {}, square = {};  // the hazard's integral up to the piece, and the moments so far

    // Adds a piece of the hazard exp(v) from `start` on, of the given length, which is negative for the last one.
    RAYFBNN_METHOD void add(PackDouble v, double start, double length) {
        typedef Lane<PackDouble> D;
        const PackDouble survival = decay(before), inverse = D::exponential(-v);
        PackDouble gone = D::splat(1), late = D::splat(0);
        if (length > 0) {
            const PackDouble d = D::exponential(v) * length, left = decay(d);
            constexpr double near = 0.34;
            gone = D::select(d < near, -D::small_expm1(-D::at_most(d, near)), 1 - left);
            late = D::at_most(d, 1e300) * left;
            before += d;
        }
        mean += survival * gone * inverse;
        square += 2 * survival * (start * gone * inverse + (gone - late) * inverse * inverse);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
