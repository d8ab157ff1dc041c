// A dynahash table with types, so that its control block and its casts are written once.
//
// The first member of an entry is its key. Keys are compared by their bytes, or as C strings with
// HASH_STRINGS. Entries never move. The table lives in the memory context that create() is given
// and is freed with it; the object is a handle, and copying it does not copy the table. No locking:
// the caller locks a table in shared memory.
#pragma once

#include "pg/server/compat.hpp"

namespace idem::pg {

template <class Key, class Entry, int key_kind = HASH_BLOBS>
class HashTable {
  public:
    // expected is the number of entries to make room for; the table grows beyond it.
    void create(const char* name, long expected, MemoryContext context) {
        HASHCTL control{};
        control.keysize = sizeof(Key);
        control.entrysize = sizeof(Entry);
        control.hcxt = context;
        table_ = hash_create(name, expected, &control, HASH_ELEM | HASH_CONTEXT | key_kind);
    }

    // In shared memory, for that many entries; every process attaches to it by its name.
    void attach(const char* name, int entries) {
        HASHCTL control{};
        control.keysize = sizeof(Key);
        control.entrysize = sizeof(Entry);
        table_ = compat::shared_hash(name, entries, control);
    }

    // NULL when there is no such entry.
    Entry* find(const Key& key) const { return search(key, HASH_FIND, nullptr); }
    // The entry of this key. A new one (found is false) has its key and nothing else set.
    Entry* enter(const Key& key, bool& found) { return search(key, HASH_ENTER, &found); }
    void remove(const Key& key) { (void)search(key, HASH_REMOVE, nullptr); }

    long size() const { return hash_get_num_entries(table_); }

    // Calls visit(entry) for every entry. The visit may remove the entry it is given, and no other.
    template <class Visit>
    void for_each(Visit visit) const {
        HASH_SEQ_STATUS status;
        hash_seq_init(&status, table_);
        while (auto* entry = static_cast<Entry*>(hash_seq_search(&status))) visit(*entry);
    }

  private:
    Entry* search(const Key& key, HASHACTION action, bool* found) const {
        Assert(table_ != nullptr);
        return static_cast<Entry*>(hash_search(table_, &key, action, found));
    }

    HTAB* table_ = nullptr;
};

}  // namespace idem::pg
