// The rates of Adam's steps, as approximate/adam.py has them.
#ifndef RAYFBNN_RATES_HPP
#define RAYFBNN_RATES_HPP

#include <cmath>
#include <tuple>
#include <vector>

namespace rayfbnn {

// The first rate, which falls to zero along a cosine, the number of steps along it, and the number of the first of a
// call's steps, counted from 1.
typedef std::tuple<double, int, int> Schedule;

// The rate and the corrections of the two moments, (n_steps, 3). In Python they took a twentieth of a step of 2-16-2.
inline std::vector<double> rates_of(const Schedule& schedule, int n_steps, double first_decay, double second_decay) {
    const auto [rate, n_all_steps, first] = schedule;
    std::vector<double> rates;
    for (double number = first; number < double(first) + n_steps; ++number) {
        rates.push_back(rate * (1 + std::cos(3.141592653589793 * (number - 1) / n_all_steps)) / 2);
        rates.push_back(1 - std::pow(first_decay, number));
        rates.push_back(1 - std::pow(second_decay, number));
    }
    return rates;
}

}  // namespace rayfbnn
#endif
