// Runs a fuzzer on a kept corpus, without libFuzzer: with any compiler, in every run of the unit
// tests. A line is an input, in which \xHH stands for a byte and \\ for a backslash.
#include <fstream>
#include <iostream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size);

namespace {

std::string unescaped(const std::string& line) {
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
        if (line[i] != '\\') {
            out += line[i];
        } else if (line[++i] == 'x') {
            out += static_cast<char>(std::stoi(line.substr(i + 1, 2), nullptr, 16));
            i += 2;
        } else {
            out += line[i];
        }
    }
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    int inputs = 0;
    for (int i = 1; i < argc; ++i) {
        std::ifstream corpus(argv[i]);
        for (std::string line; std::getline(corpus, line); ++inputs) {
            const std::string input = unescaped(line);
            LLVMFuzzerTestOneInput(input.data(), input.size());
        }
    }
    std::cout << inputs << " inputs\n";
    return inputs > 0 ? 0 : 1;  // without a corpus, nothing was tested
}
