// Takes any bytes as the events of a walk through a request. Checks that
// - the canonical form can be read back into the same events, which shows that it is unambiguous;
// - the path filter agrees with a simple one that builds whole paths;
// - the fingerprint does not depend on the sizes of the pieces that are written;
// - what unpack() accepts as a stored fingerprint, pack() writes again.
#include <algorithm>
#include <string>
#include <vector>

#include "core/fingerprint.hpp"
#include "core/path.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

struct Text {
    std::string bytes;
    void write(Bytes in) { bytes.append(reinterpret_cast<const char*>(in.data()), in.size()); }
};

struct Event {
    char kind;  // the tag in the canonical form
    std::string text;
    int weight;
    friend bool operator==(const Event&, const Event&) = default;
};

// A length in groups of seven bits.
std::size_t read_length(Input& in) {
    std::size_t length = 0;
    for (unsigned shift = 0;; shift += 7) {
        const std::size_t group = in.byte();
        length |= (group & 0x7f) << shift;
        if (group <= 0x7f) return length;
    }
}

// Reads a canonical form back.
std::vector<Event> read_back(std::string_view form) {
    std::vector<Event> events;
    Input in(form);
    while (!in.done()) {
        Event event{static_cast<char>(in.byte()), {}, 0};
        const bool number = event.kind == '+' || event.kind == '-';
        if (number) event.weight = static_cast<int>(from_big_endian(as_bytes(in.text(4))));
        if (number || event.kind == 's' || event.kind == 'm') event.text = in.text(read_length(in));
        events.push_back(event);
    }
    return events;
}

// The event of a number, with its leading and trailing zero digits removed one by one.
Event plain_number(bool negative, int weight, std::string digits) {
    const auto zero_at = [&](std::size_t i) { return digits[i] == 0 && digits[i + 1] == 0; };
    for (; !digits.empty() && zero_at(0); --weight) digits.erase(0, 2);
    while (!digits.empty() && zero_at(digits.size() - 2)) digits.resize(digits.size() - 2);
    if (digits.empty()) return {'+', {}, 0};
    return {negative ? '-' : '+', digits, weight};
}

// A path filter that may allocate memory. It has the other's limit of depth: only a path with empty
// names could be short enough and deeper.
class PlainFilter {
  public:
    explicit PlainFilter(std::span<const std::string_view> paths) : paths_(paths) {}
    void begin_object() { objects_.push_back(member_); }
    void end_object() {
        member_ = objects_.back();
        objects_.pop_back();
    }
    bool excludes(std::string_view name) {
        member_ =
            objects_.size() == 1 ? std::string(name) : objects_.back() + "." + std::string(name);
        if (objects_.size() > max_path_bytes / 2 + 1) return false;
        return std::find(paths_.begin(), paths_.end(), member_) != paths_.end();
    }

  private:
    std::span<const std::string_view> paths_;
    std::vector<std::string> objects_;  // the path of each open object
    std::string member_;
};

std::string fingerprint(std::string_view form, std::size_t piece) {
    Hmac hmac(Secret{});
    Hash out{};
    for (std::size_t at = 0; at < form.size(); at += piece)
        hmac.write(as_bytes(form.substr(at, piece)));
    require(hmac.finish(out));
    return {reinterpret_cast<const char*>(out.data()), out.size()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    Fingerprint stored{};
    if (unpack(as_bytes(in.rest()), stored))
        require(std::ranges::equal(pack(stored).bytes(), as_bytes(in.rest())));
    std::vector<std::string_view> paths;
    for (unsigned i = in.byte() % 4; i > 0; --i) {
        const std::string_view path = in.text(in.byte());
        if (!path.empty() && path.size() <= max_path_bytes) paths.push_back(path);
    }
    const std::size_t piece = 1 + in.byte() * 4;

    Text text;
    CanonicalWriter<Text> writer(text);
    PathFilter filter(paths);
    PlainFilter plain(paths);
    std::vector<Event> events;
    std::string open;  // '[' and '{', outermost first
    const auto in_object = [&] { return !open.empty() && open.back() == '{'; };
    while (!in.done()) {
        if (in_object()) {
            const std::string_view name = in.text(in.byte() % 8);
            if (filter.excludes(name) != plain.excludes(name)) std::abort();
            writer.member(name);
            events.push_back({'m', std::string(name), 0});
        }
        const unsigned choice = in.byte();
        switch (choice % 8) {
            case 0:
                writer.null();
                events.push_back({'n', {}, 0});
                break;
            case 1:
                writer.boolean(choice & 8);
                events.push_back({choice & 8 ? 't' : 'f', {}, 0});
                break;
            case 2: {
                const std::string_view value = in.text(in.byte());
                writer.string(value);
                events.push_back({'s', std::string(value), 0});
                break;
            }
            case 3: {
                const int weight = static_cast<int>(in.byte()) - 128;
                const std::string_view taken = in.text(in.byte() % 32);
                const std::string_view digits = taken.substr(0, taken.size() / 2 * 2);
                writer.number({(choice & 8) != 0, weight, as_bytes(digits)});
                events.push_back(plain_number(choice & 8, weight, std::string(digits)));
                break;
            }
            case 4:
            case 5:
                writer.begin_array();
                events.push_back({'[', {}, 0});
                open.push_back('[');
                break;
            default:
                writer.begin_object();
                filter.begin_object();
                plain.begin_object();
                events.push_back({'{', {}, 0});
                open.push_back('{');
        }
        for (unsigned closing = choice >> 6; closing > 0 && !open.empty(); --closing) {
            if (in_object()) {
                writer.end_object();
                filter.end_object();
                plain.end_object();
            } else {
                writer.end_array();
            }
            events.push_back({open.back() == '{' ? '}' : ']', {}, 0});
            open.pop_back();
        }
    }
    if (read_back(text.bytes) != events) std::abort();
    if (fingerprint(text.bytes, piece) != fingerprint(text.bytes, text.bytes.size() + 1))
        std::abort();
    return 0;
}
