import json, base64, struct, subprocess, tiktoken, random, sys
import mistral_common, os
p=os.path.join(os.path.dirname(mistral_common.__file__),'data','tekken_240911.json')
t=json.load(open(p))
cfg=t['config']; nspec=cfg.get('default_num_special_tokens',1000); vs=cfg['default_vocab_size']
voc=t['vocab'][:vs-nspec]
ranks={base64.b64decode(v['token_bytes']):v['rank'] for v in voc}
enc=tiktoken.Encoding('t',pat_str=cfg['pattern'],mergeable_ranks=ranks,special_tokens={})
out=open('/work/tmp/grammar_bench/vocab.bin','wb')
out.write(struct.pack('<I',vs))
toks=[b'']*vs
for b,r in ranks.items(): toks[r+nspec]=b
for b in toks: out.write(struct.pack('<I',len(b))+b)
out.close()
repo='/work/.mirror/guidance-ai+jsonschemabench/repo'
names=subprocess.check_output(['git','-C',repo,'ls-tree','--name-only','HEAD','maskbench/data/'],text=True).split()
want=('Github_easy','Github_medium','Glaive','Kubernetes','Handwritten','Synthesized')
names=[n for n in names if n.split('/')[-1].startswith(want)]
random.seed(7); random.shuffle(names)
n=int(sys.argv[1]); names=names[:n]
p=subprocess.Popen(['git','-C',repo,'cat-file','--batch'],stdin=subprocess.PIPE,stdout=subprocess.PIPE)
o=open('/work/tmp/grammar_bench/bench_%d.txt'%n,'wb')
for nm in names:
    p.stdin.write(('HEAD:'+nm+'\n').encode()); p.stdin.flush()
    h=p.stdout.readline().split()
    if h[1]==b'missing': continue
    d=p.stdout.read(int(h[2])); p.stdout.read(1)
    j=json.loads(d)
    s=json.dumps(j['schema'],ensure_ascii=False).encode('utf8','surrogatepass')
    # binary record: name, schema, ntests, each valid,text,ntok,toks
    nb=nm.split('/')[-1].encode()
    o.write(struct.pack('<I',len(nb))+nb+struct.pack('<I',len(s))+s)
    ts=[x for x in j['tests']]
    o.write(struct.pack('<I',len(ts)))
    for x in ts:
        txt=json.dumps(x['data'],ensure_ascii=False)
        try: tb=txt.encode('utf8')
        except UnicodeEncodeError: txt=json.dumps(x['data']); tb=txt.encode()
        ids=[i+nspec for i in enc.encode_ordinary(txt)]
        o.write(struct.pack('<II',1 if x['valid'] else 0,len(tb))+tb+struct.pack('<I',len(ids))+struct.pack('<%dI'%len(ids),*ids))
print(len(names),vs,nspec)
