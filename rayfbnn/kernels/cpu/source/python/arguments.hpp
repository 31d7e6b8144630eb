// The arrays that Python passes, checked before anything reads them.
#ifndef RAYFBNN_ARGUMENTS_HPP
#define RAYFBNN_ARGUMENTS_HPP

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <type_traits>
#include <vector>

namespace nb = nanobind;

namespace rayfbnn {

typedef nb::ndarray<nb::ro> Input;
typedef nb::ndarray<> Output;

inline std::string shape_text(const std::vector<size_t>& shape) {
    std::string text = "(";
    for (size_t k = 0; k < shape.size(); ++k) text += (k ? ", " : "") + std::to_string(shape[k]);
    return text + (shape.size() == 1 ? ",)" : ")");
}

// The array's data, if the kernels can read it as it is. Otherwise an error: a misread array gives wrong draws that
// look right.
template <class A>
auto data_of(const A& array, const char* name, nb::dlpack::dtype dtype, const std::vector<size_t>& shape) {
    if (array.device_type() != nb::device::cpu::value)
        throw nb::type_error((std::string(name) + ": must be in host memory").c_str());
    if (array.dtype() != dtype)
        throw nb::type_error((std::string(name) + ": must be of dtype " +
                              (dtype.code == uint8_t(nb::dlpack::dtype_code::Int) ? "int" : "float") +
                              std::to_string(dtype.bits))
                                 .c_str());
    bool fits = array.ndim() == shape.size();
    for (size_t k = 0; fits && k < shape.size(); ++k) fits = array.shape(k) == shape[k];
    if (!fits) throw nb::value_error((std::string(name) + ": must have the shape " + shape_text(shape)).c_str());
    int64_t step = 1;
    for (size_t k = shape.size(); k-- > 0;) {
        if (shape[k] > 1 && array.stride(k) != step)
            throw nb::value_error((std::string(name) + ": must be C-contiguous").c_str());
        step *= int64_t(shape[k]);
    }
    return array.data();
}

inline void require(bool holds, const char* message) {
    if (!holds) throw nb::value_error(message);
}

// The data of an array of float64.
template <class A>
auto doubles(const A& array, const char* name, const std::vector<size_t>& shape) {
    typedef std::conditional_t<std::is_same_v<A, Output>, double, const double> Number;
    return static_cast<Number*>(data_of(array, name, nb::dtype<double>(), shape));
}

}  // namespace rayfbnn
#endif
