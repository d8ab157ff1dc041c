# Which clusters there are, and what they preload: debian/rules puts this into postinst and prerm.

version=${DPKG_MAINTSCRIPT_PACKAGE#postgresql-}
version=${version%-idem}

# The clusters of this version, as lines of name and port.
clusters() {
    pg_lsclusters -h 2>/dev/null | awk -v version="$version" '$1 == version { print $2, $3 }'
}

# What a cluster preloads, according to its files: postgresql.auto.conf before postgresql.conf.
preloaded() {
    pg_conftool -s "$version" "$1" show shared_preload_libraries 2>/dev/null || true
}

preloads_idem() {
    preloaded "$1" | tr -d " \"'" | tr , '\n' | grep -qx idem
}

# The libraries of the list on standard input, each in quotes of its own: ALTER SYSTEM would take 'a, b'
# for the name of one library.
quoted() {
    tr -d " \"'" | tr , '\n' | sed "/^\$/d; s/.*/'&'/" | paste -sd, | sed 's/,/, /g'
}
