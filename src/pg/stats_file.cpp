#include "pg/stats_file.hpp"

#include "pg/report.hpp"

namespace idem::pg {
namespace {

constexpr const char* path = "pg_stat/idem.stat";
constexpr const char* unfinished = "pg_stat/idem.stat.tmp";

struct Header {
    std::uint32_t magic = 0x1DE35701;  // the last byte is the version of the layout
    std::uint32_t counters = counter_count;
};

// Each row is guarded by itself, so that a file cut short gives what it has.
struct Row {
    SavedStats saved;
    pg_crc32c crc;
};
static_assert(std::is_trivially_copyable_v<Row>);

pg_crc32c crc_of(const SavedStats& saved) {
    pg_crc32c crc;
    INIT_CRC32C(crc);
    COMP_CRC32C(crc, &saved, sizeof saved);
    FIN_CRC32C(crc);
    return crc;
}

}  // namespace

StatsWriter::StatsWriter() : file_(AllocateFile(unfinished, PG_BINARY_W)) {
    const Header header;
    failed_ = file_ == nullptr || fwrite(&header, sizeof header, 1, file_) != 1;
}

void StatsWriter::write(const SavedStats& saved) {
    if (failed_) return;
    Row row;
    memset(static_cast<void*>(&row), 0, sizeof row);  // padding is part of what the checksum guards
    row.saved.scope = saved.scope;
    row.saved.stats = saved.stats;
    row.crc = crc_of(row.saved);
    failed_ = fwrite(&row, sizeof row, 1, file_) != 1;
}

void StatsWriter::finish() {
    if (file_ != nullptr && FreeFile(file_) != 0) failed_ = true;
    if (failed_) {
        report::file_failure("write", path);
        (void)unlink(unfinished);
        return;
    }
    (void)durable_rename(unfinished, path, LOG);
}

void read_stats_file(void (*use)(const SavedStats&)) {
    FILE* file = AllocateFile(path, PG_BINARY_R);
    if (file == nullptr) {
        if (errno != ENOENT) report::file_failure("read", path);
        return;
    }
    const Header expected;
    Header header{0, 0};
    bool good = fread(&header, sizeof header, 1, file) == 1 && header.magic == expected.magic &&
                header.counters == expected.counters;
    for (Row row; good && fread(&row, sizeof row, 1, file) == 1;) {
        good = row.crc == crc_of(row.saved);
        if (good) use(row.saved);
    }
    if (!good) report::invalid_file(path);
    FreeFile(file);
    (void)unlink(path);
}

}  // namespace idem::pg
