# Joins a page with its style and scripts, and writes it as a C array: NAME and NAME_len, declared in HEADER.
#   cmake -DFOLDER=server/observe/ui -DPARTS=page.base.js,page.js -DNAME=rp_ui_page -DHEADER=server/observe/ui_page.h
#         -DOUT=ui_page.c -P embed.cmake
file(READ ${FOLDER}/page.html html)
file(READ ${FOLDER}/page.css text)
string(REPLACE "/*STYLE*/" "${text}" html "${html}")
set(script "")
string(REPLACE "," ";" parts "${PARTS}")
foreach(part ${parts})
  file(READ ${FOLDER}/${part} text)
  string(APPEND script "${text}")
endforeach()
string(REPLACE "/*SCRIPT*/" "${script}" html "${html}")
file(WRITE ${OUT}.html "${html}")
file(READ ${OUT}.html hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(([^,]*,){24})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include \"${HEADER}\"\nconst unsigned char ${NAME}[] = {\n${bytes}};\nconst size_t ${NAME}_len = sizeof ${NAME};\n")
