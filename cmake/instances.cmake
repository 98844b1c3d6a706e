# Translation units from a table: each function of an instances.def becomes a .cu file of its own in the build folder, so that the
# instances of one template compile in parallel and no hand-written stub is committed. Lines of the table:
#   # a comment
#   include <path>          the units after it include this; an empty line forgets all includes
#   namespace <name>        where the functions after it live
#   <declaration> = <call>  the function, whose body is `return <call>;`
function(sparseloom_instances table folder units)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(READ ${table} text)
  string(REPLACE "\n" ";" lines "${text}")
  set(includes "")
  set(made "")
  foreach(line IN LISTS lines)
    if(line STREQUAL "")
      set(includes "")
    elseif(line MATCHES "^#")
      continue()
    elseif(line MATCHES "^include (.+)$")
      string(APPEND includes "#include \"${CMAKE_MATCH_1}\"\n")
    elseif(line MATCHES "^namespace (.+)$")
      set(namespace ${CMAKE_MATCH_1})
    elseif(line MATCHES "^([a-zA-Z_]+ ([a-z0-9_]+)\\(.*\\) noexcept) = (.+)$")
      set(unit ${folder}/${CMAKE_MATCH_2}.cu)
      file(CONFIGURE OUTPUT ${unit} @ONLY CONTENT
        "${includes}\nnamespace ${namespace} {\n\n${CMAKE_MATCH_1} { return ${CMAKE_MATCH_3}; }\n\n}  // namespace ${namespace}\n")
      list(APPEND made ${unit})
    else()
      message(FATAL_ERROR "${table}: neither a comment, an include, a namespace nor `<declaration> = <call>`: ${line}")
    endif()
  endforeach()
  set(${units} ${${units}} ${made} PARENT_SCOPE)
endfunction()
