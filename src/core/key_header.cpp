#include "core/key_header.hpp"

namespace idem::core {
namespace {

constexpr bool is_digit(char c) noexcept {
    return c >= '0' && c <= '9';
}
constexpr bool is_lower(char c) noexcept {
    return c >= 'a' && c <= 'z';
}
constexpr bool is_alpha(char c) noexcept {
    return is_lower(c) || (c >= 'A' && c <= 'Z');
}
constexpr bool is_visible(char c) noexcept {
    return c > ' ' && c <= '~';
}
constexpr bool is_one_of(char c, std::string_view set) noexcept {
    return set.find(c) != std::string_view::npos;
}

// The blanks that may surround the value of a header.
constexpr std::string_view blanks = " \t";

// Reads the header from left to right. The first fault is kept; position() is where it is.
class Reader {
  public:
    explicit Reader(std::string_view text) noexcept : text_(text) {}

    bool done() const noexcept { return at_ == text_.size(); }
    std::size_t position() const noexcept { return at_; }
    bool sees(char c) const noexcept { return !done() && text_[at_] == c; }
    template <class Is>
    bool sees(Is is) const noexcept {
        return !done() && is(text_[at_]);
    }
    char take() noexcept { return text_[at_++]; }
    bool take_if(char c) noexcept {
        if (!sees(c)) return false;
        ++at_;
        return true;
    }
    // How many characters in a row fit.
    template <class Is>
    std::size_t take_while(Is is) noexcept {
        const std::size_t from = at_;
        while (sees(is)) ++at_;
        return at_ - from;
    }

  private:
    std::string_view text_;
    std::size_t at_ = 0;
};

// The string at the reader, which sees its opening quote. Passes each character on to put().
template <class Put>
HeaderFault read_string(Reader& in, Put put) noexcept {
    in.take();
    while (!in.done()) {
        if (in.take_if('"')) return HeaderFault::none;
        if (!in.sees(is_visible) && !in.sees(' ')) return HeaderFault::string_character;
        const bool escaped = in.take_if('\\');
        if (in.done()) break;
        if (escaped && !in.sees('"') && !in.sees('\\')) return HeaderFault::escape;
        put(in.take());
    }
    return HeaderFault::open_string;
}

// ---- Parameters, as in section 3.1.2 of RFC 8941 ------------------------------------------------

// An integer of up to 15 digits, or a decimal of up to 12 with up to 3 more after the point.
bool skip_number(Reader& in) noexcept {
    in.take_if('-');
    const std::size_t whole = in.take_while(is_digit);
    if (!in.take_if('.')) return whole >= 1 && whole <= 15;
    const std::size_t fraction = in.take_while(is_digit);
    return whole >= 1 && whole <= 12 && fraction >= 1 && fraction <= 3;
}

bool skip_token(Reader& in) noexcept {
    in.take_while([](char c) noexcept {
        return is_alpha(c) || is_digit(c) || is_one_of(c, "!#$%&'*+-.^_`|~:/");
    });
    return true;
}

bool skip_bytes(Reader& in) noexcept {
    in.take();
    in.take_while(
        [](char c) noexcept { return is_alpha(c) || is_digit(c) || is_one_of(c, "+/="); });
    return in.take_if(':');
}

bool skip_boolean(Reader& in) noexcept {
    in.take();
    return in.take_if('0') || in.take_if('1');
}

bool skip_value(Reader& in) noexcept {
    if (in.sees('"')) return read_string(in, [](char) noexcept {}) == HeaderFault::none;
    if (in.sees('-') || in.sees(is_digit)) return skip_number(in);
    if (in.sees('*') || in.sees(is_alpha)) return skip_token(in);
    if (in.sees(':')) return skip_bytes(in);
    return in.sees('?') && skip_boolean(in);
}

bool skip_name(Reader& in) noexcept {
    if (!in.sees('*') && !in.sees(is_lower)) return false;
    in.take_while(
        [](char c) noexcept { return is_lower(c) || is_digit(c) || is_one_of(c, "_-.*"); });
    return true;
}

HeaderFault skip_parameters(Reader& in) noexcept {
    while (in.take_if(';')) {
        in.take_while([](char c) noexcept { return c == ' '; });
        if (!skip_name(in)) return HeaderFault::parameter;
        if (in.take_if('=') && !skip_value(in)) return HeaderFault::parameter;
        if (!in.done() && !in.sees(';')) return HeaderFault::parameter;
    }
    return in.done() ? HeaderFault::none : HeaderFault::after_string;
}

// ---- The key ------------------------------------------------------------------------------------

void append(KeyHeader& header, char c) noexcept {
    if (header.key_size < header.key_bytes.size()) header.key_bytes[header.key_size] = c;
    ++header.key_size;
}

HeaderFault read_token(Reader& in, KeyHeader& header) noexcept {
    const auto fits = [](char c) noexcept { return is_visible(c) && !is_one_of(c, "\",;"); };
    while (in.sees(fits)) append(header, in.take());
    return in.done() ? HeaderFault::none : HeaderFault::token_character;
}

HeaderFault read_quoted(Reader& in, KeyHeader& header) noexcept {
    const auto fault = read_string(in, [&](char c) noexcept { append(header, c); });
    return fault == HeaderFault::none ? skip_parameters(in) : fault;
}

}  // namespace

KeyHeader read_key_header(std::string_view header) noexcept {
    KeyHeader out;
    const std::size_t begin = header.find_first_not_of(blanks);
    if (begin == std::string_view::npos) return out;
    out.sent = true;
    const std::size_t end = header.find_last_not_of(blanks) + 1;
    Reader in(header.substr(begin, end - begin));
    out.fault = in.sees('"') ? read_quoted(in, out) : read_token(in, out);
    out.position = begin + in.position();
    return out;
}

}  // namespace idem::core
