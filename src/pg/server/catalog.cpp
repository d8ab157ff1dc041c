#include "pg/server/catalog.hpp"

namespace idem::pg {

// The catalog notes what a relation depends on, unless it is built in.
bool calls_foreign_code(Oid relation) {
    constexpr std::array code = {ProcedureRelationId,      OperatorRelationId,
                                 TypeRelationId,           OperatorClassRelationId,
                                 OperatorFamilyRelationId, AccessMethodRelationId};
    bool found = false;
    each_dependency(DependDependerIndexId, Anum_pg_depend_classid, RelationRelationId, relation,
                    [&found, &code](const FormData_pg_depend& on) {
                        found = found || (on.objsubid == 0 &&
                                          std::ranges::find(code, on.refclassid) != code.end());
                    });
    return found;
}

NullableDatum call_internal(const char* function, std::initializer_list<TypedDatum> arguments) {
    constexpr std::size_t max_arguments = 2;
    Assert(arguments.size() <= max_arguments);
    LOCAL_FCINFO(call, max_arguments);
    std::array<Oid, max_arguments> types;
    short count = 0;
    for (const auto& [type, value] : arguments) {
        types[static_cast<std::size_t>(count)] = type;
        call->args[count++] = {value, false};
    }
    const Oid oid = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(function),
                                    PointerGetDatum(buildoidvector(types.data(), count)),
                                    ObjectIdGetDatum(get_namespace_oid("idem_internal", false)));
    FmgrInfo info;
    fmgr_info(oid, &info);
    InitFunctionCallInfoData(*call, &info, count, DEFAULT_COLLATION_OID, nullptr, nullptr);
    const Datum result = FunctionCallInvoke(call);
    return {result, call->isnull};
}

}  // namespace idem::pg
