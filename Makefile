# idem: PGXS build. "make && make install" needs only PostgreSQL's development files, a C++20
# compiler and OpenSSL 3; "make demo", "make check" and "make bench" install what they need.

EXTVERSION := $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" idem.control)

# These targets work on a fresh machine, which has no pg_config to include PGXS from. The other goals of
# the same command are those of PGXS, and a make of their own reaches them, one after the other.
ON_FRESH_MACHINE = demo quick check check-server check-all check-examples unit fuzz \
  fuzz-core fuzz-sql fuzz-smith model mutants chaos tidy coverage \
  deb check-deb check-rpm check-images dist check-dist check-citus packages managed bench site check-site
ifneq (,$(filter $(ON_FRESH_MACHINE),$(MAKECMDGOALS)))
OF_PGXS = $(filter-out $(ON_FRESH_MACHINE),$(MAKECMDGOALS))
.PHONY: $(ON_FRESH_MACHINE) $(OF_PGXS)
.NOTPARALLEL:
$(OF_PGXS):
	@$(MAKE) --no-print-directory $@
# SECONDS is the shell's own.
export TEST_SECONDS = $(SECONDS)
demo bench:
	@tools/setup $@
	@$@/run
check:
	@tools/setup check
	@test/run
check-server:
	@tools/setup build
	@test/run server
quick unit:
	@test/run $@
fuzz model mutants chaos coverage:
	@tools/setup $@
	@test/run $@ $(ARGUMENTS)
model: ARGUMENTS = $(RUNS)
mutants: ARGUMENTS = $(MUTANTS)
fuzz-core fuzz-sql fuzz-smith:
	@tools/setup fuzz
	@test/run fuzz $(@:fuzz-%=%)
tidy:
	@tools/setup tidy
	@$(MAKE) -s tidy-sources
check-all:
	@test/run versions $(VERSIONS)
check-examples:
	@tools/setup examples
	@PROVE_FLAGS=$${PROVE_FLAGS:--v} test/run tap test/t/examples.pl test/t/service.pl test/t/client_node.pl test/t/frameworks.pl test/t/conformance.pl
check-citus:
	@[ -z "$(CITUS)" ] || tools/setup citus
	@test/run citus "$(CITUS)"
deb:
	@tools/setup deb
	@tools/deb
check-images:
	@tools/setup images
	@test/run images
check-deb:
	@test/run packages
check-rpm:
	@tools/setup rpm
	@test/run rpm
dist:
	@tools/setup dist
	@tools/dist
check-dist:
	@tools/setup dist
	@test/run dist
packages:
	@tools/setup clients
	@tools/packages
# The SQL edition as one file, without the library.
managed: idem-managed--$(EXTVERSION).sql
idem-managed--$(EXTVERSION).sql: $(wildcard sql/*.sql) idem.control
	rm -f idem-managed--*.sql
	tools/managed > $@
site:
	@tools/setup $@
	@tools/site
check-site:
	@tools/setup site
	@prove test/site.pl
else

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq (,$(wildcard $(PGXS)))
$(error "$(PG_CONFIG) --pgxs" names no file. Install the development files of PostgreSQL, on Debian the \
  package postgresql-server-dev-all, or name their pg_config: make PG_CONFIG=/path/to/pg_config)
endif

EXTENSION = idem test_extension/idem_test
MODULE_big = idem
OBJS = $(patsubst %.cpp,%.o,$(sort $(wildcard src/*.cpp src/*/*.cpp src/*/*/*.cpp)))
# The scripts of earlier releases, and of the updates between them.
DATA = $(wildcard sql/idem--*.sql)
DATA_built = idem--$(EXTVERSION).sql idem_test--$(EXTVERSION).sql

# The extension idem_test, for tests, has a library of its own.
MODULES = test_extension/idem_test
TEST_OBJS = $(patsubst %.cpp,%.o,$(sort $(wildcard test_extension/*.cpp))) \
  src/pg/server/subtransaction.o src/pg/store/leaf_probe.o

SERVER_INCLUDES := $(shell $(PG_CONFIG) --includedir-server)
# The server's headers are system headers, so that the warnings are about our code alone. tools/setup
# makes them errors for the tests; for users, whose compiler may be newer, they stay warnings.
WARNINGS ?= -Wall -Wextra -Wshadow -Wconversion -Wmissing-declarations
PG_CPPFLAGS = -Isrc -isystem $(SERVER_INCLUDES) -DIDEM_VERSION=\"$(EXTVERSION)\" -MMD -MP
# Functions may be inlined into others of the library, and calls of the server do not pass through a
# table of jumps, which takes 70 lines of the instruction cache per claim.
PG_CXXFLAGS = -std=c++20 -fno-semantic-interposition -fno-plt $(WARNINGS) $(WERROR)
SHLIB_LINK = -lcrypto -lstdc++ -Wl,--version-script=src/idem.map

REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --load-extension=idem
ISOLATION = $(filter-out $(LEFT_OUT),$(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec))))
ISOLATION_OPTS = --inputdir=test --outputdir=. --load-extension=idem
# "make installcheck" runs on the server that PGHOST and so on name. With default settings, a server
# refuses PREPARE TRANSACTION.
ifneq (,$(filter installcheck,$(MAKECMDGOALS)))
ifeq (0,$(shell $(shell $(PG_CONFIG) --bindir)/psql -XAtc 'SHOW max_prepared_transactions' postgres))
LEFT_OUT = iso_advance iso_prepared
$(info max_prepared_transactions is 0: NOT TESTED are $(LEFT_OUT))
endif
endif
# The TAP tests start servers, which refuse to run as root. "test/run tap" runs them as another user.
TAP_TESTS = 1
PROVE_TESTS ?= test/t/*.pl
override PROVE_FLAGS += -I test/t
export IDEM_EXAMPLES ?= pay.py pay.pl

EXTRA_CLEAN = $(OBJS:.o=.d) $(TEST_OBJS) $(TEST_OBJS:.o=.d) idem--*.sql idem_test--*.sql idem-managed--*.sql

# The bitcode rule ignores PG_CXXFLAGS, and the hot paths are not worth inlining into plans.
override with_llvm = no
include $(PGXS)

idem--$(EXTVERSION).sql: $(patsubst %,sql/%.sql,base schema types functions functions_sql functions_http library comments views health privileges) idem.control
	{ printf '%s\n' '\echo Use "CREATE EXTENSION idem" to load this file. \quit'; cat $(filter %.sql,$^); } > $@

idem_test--$(EXTVERSION).sql: test_extension/idem_test.sql idem.control
	cp $< $@

$(MODULES)$(DLSUFFIX): $(TEST_OBJS)
	$(CXX) $(CXXFLAGS) $(TEST_OBJS) $(LDFLAGS) $(LDFLAGS_SL) -shared -lstdc++ \
	  -Wl,--version-script=src/idem.map -o $@

# PGXS installs a module without its directory, and would look for it there.
uninstall: uninstall-modules
.PHONY: uninstall-modules
uninstall-modules:
	rm -f $(addprefix '$(DESTDIR)$(pkglibdir)'/,$(addsuffix $(DLSUFFIX),$(notdir $(MODULES))))

src/module.o test_extension/module.o: idem.control  # has the version
-include $(OBJS:.o=.d) $(TEST_OBJS:.o=.d)

# TIDY="src/core/key.cpp ..." checks some of them alone. The filter drops the lines that count warnings
# in the server's own headers.
TIDY ?= $(OBJS:.o=.cpp) $(filter test_extension/%,$(TEST_OBJS:.o=.cpp))
CLANG_TIDY ?= clang-tidy
.PHONY: tidy-sources
tidy-sources:
	$(CLANG_TIDY) --version | grep version
	printf '%s\n' $(TIDY) | xargs -P "$$(nproc)" -n 1 sh -c \
	  '$(CLANG_TIDY) --quiet "$$1" -- -std=c++20 $(filter-out -MMD -MP,$(CPPFLAGS)) 2>&1 | \
	    { ! grep -v "warnings\{0,1\} generated\.$$"; }' sh
	@echo "clang-tidy: no problems found in $(words $(TIDY)) files"

endif
